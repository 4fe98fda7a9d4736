"""`twinkle backup` while clients of the real SDK train, and `twinkle restore`."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

pytest.importorskip("tinker")
from service.test_recovery import ADAM, SEEDS, datum
from service.wire import Wire, wait_until

NUM_BACKUPS = 3
JOURNAL_BYTES = 8000  # so that records give way to a state all the time


def told_of(what, folder):
    """The line of a copy that is done."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    bytes_ = sum(sizes)
    size = f"{bytes_ / 1e3:.1f} kB" if bytes_ < 1e6 else f"{bytes_ / 1e6:.1f} MB"
    return f"{what} in {folder}: {len(sizes)} files, {size}\n"


def sha256(folder):
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


class Client:
    """Steps and saves each step under its number, until it is told to end."""

    def __init__(self, server, seed):
        self.key = f"tml-{seed}"
        self.seed = seed
        self.training = server.client(self.key).create_lora_training_client(
            "tiny", rank=4, seed=seed
        )
        self.run = self.training.get_info().model_id
        self.steps = 0  # its save was answered

    def work(self, is_over):
        while not is_over.is_set():
            passed = self.training.forward_backward([datum(self.seed)], "cross_entropy")
            stepped = self.training.optim_step(ADAM)
            path = self.training.save_state(f"step-{self.steps + 1}")
            assert passed.result().metrics and stepped.result().metrics
            path.result()
            self.steps += 1


def save_restored(wire, run, seq_id):
    """Saves the run as "restored", under the first number from this one on that is free."""
    while True:
        body = {"model_id": run, "seq_id": seq_id, "path": "restored"}
        told = wire.result(wire.ok("save_weights", body))
        if isinstance(told, dict) and told.get("path", "").endswith("/restored"):
            return seq_id
        seq_id += 1  # the request is in the backup


def steps_of(server, client, state, again, before):
    """How many the restored run has; its weights, and those saved, are those of then."""
    number = save_restored(Wire(server.url, client.key), client.run, 3 * before + 1)
    steps = number // 3  # forward_backward, optim_step, save, from 1 on
    saved = state / "checkpoints" / client.run / "weights"
    restored = again / "checkpoints" / client.run / "weights"
    assert sha256(restored / "restored") == sha256(saved / f"step-{steps}")
    for step in range(1, steps):
        assert sha256(restored / f"step-{step}") == sha256(saved / f"step-{step}")
    return steps


def test_backups_beside_training_clients_are_states_of_moments_of_theirs(
    start, twinkle, tiny_llama_dir, tmp_path
):
    def serve(state):
        options = ["--journal-bytes", str(JOURNAL_BYTES), "--snapshot-seconds", "0.3"]
        return start(tiny_llama_dir, state, *options, "--log-level", "off")

    state, is_over, told = tmp_path / "state", Event(), []
    server = serve(state)
    clients = [Client(server, seed) for seed in SEEDS]
    with ThreadPoolExecutor(len(clients)) as pool:
        working = [pool.submit(client.work, is_over) for client in clients]
        try:
            wait_until(lambda: all(client.steps > 0 for client in clients))
            for number in range(NUM_BACKUPS):
                before = [client.steps for client in clients]
                copy = tmp_path / f"backup-{number}"
                done = twinkle("backup", copy, "--state", state)
                assert done.stdout == told_of("backup", copy), done.stderr
                told.append((before, [client.steps for client in clients]))
        finally:
            is_over.set()
        for one in working:
            one.result(60)
    assert server.stop() == 0
    assert (state / "journal/state").exists(), "no records gave way; make JOURNAL_BYTES less"

    for number, (before, after) in enumerate(told):
        again = tmp_path / f"again-{number}"
        done = twinkle("restore", tmp_path / f"backup-{number}", "--state", again)
        assert done.stdout == told_of("state", again), done.stderr
        restored = serve(again)
        for client, least, most in zip(clients, before, after, strict=True):
            assert least <= steps_of(restored, client, state, again, least) <= most + 1
        assert restored.stop() == 0
    went_on = zip(told[0][1], told[-1][0], strict=True)
    assert all(first < last for first, last in went_on), "the clients waited for the copies"
