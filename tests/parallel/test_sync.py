"""Samplers in other processes than the model: after a sync they sample its bits."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parallel.processes import environment, free_port

SCRIPT = Path(__file__).with_name("sync_script.py")


class Ranks:
    """`senders` ranks of one model, and `receivers` samplers, each a process. model: the folder of
    both, or of each role."""

    def __init__(self, senders, receivers, model, kind, steps=3, **more):
        size, port = senders + receivers, str(free_port())
        self.processes = []
        for rank in range(size):
            role = "model" if rank < senders else "sampler"
            env = environment(**more)
            if role == "model" and senders > 1:
                env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(senders)}
                env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            directory = model[role] if isinstance(model, dict) else model
            arguments = map(str, (role, directory, kind, rank, size, senders, steps))
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), *arguments],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def __enter__(self):
        address = self.processes[0].stdout.readline()
        assert address, self.processes[0].stderr.read()[-4000:]
        for process in self.processes[1:]:
            process.stdin.write(address)
            process.stdin.flush()
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait_for_steps(self, count):
        for process in self.processes:
            while f"step {count}" not in (line := process.stdout.readline()):
                assert line, process.stderr.read()[-4000:]

    def results(self):
        """What each has printed last. errors: what each has said."""
        out, self.errors = [], []
        for process in self.processes:
            text, error = process.communicate(timeout=200)
            assert process.returncode == 0, error[-4000:]
            out.append(json.loads(text.splitlines()[-1]))
            self.errors.append(error)
        return out


@pytest.mark.parametrize("kind", ["adapter", "full"])
@pytest.mark.parametrize(("senders", "receivers"), [(1, 1), (1, 2), (2, 1)])
def test_samplers_in_other_processes_sample_the_models_bits(
    kind, senders, receivers, tiny_llama_dir
):
    with Ranks(senders, receivers, tiny_llama_dir, kind) as ranks:
        results = ranks.results()
    told = results[0]["told"]
    assert told[0] != told[1] != told[2]
    assert all(result["told"] == told for result in results)
    for step in range(3):
        received = [result["sent"][step] for result in results[senders:]]
        sent = [result["sent"][step] for result in results[:senders]]
        assert sum(s["num_bytes"] for s in sent) == sum(r["num_bytes"] for r in received) > 0
        assert all(r["has_base"] is (kind == "full") for r in sent + received)


def test_ranks_that_share_the_base_send_it_in_parts(tiny_llama_dir, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(tiny_llama_dir)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)  # of other weights
    with Ranks(2, 1, {"model": tiny_llama_dir, "sampler": tmp_path}, "parts") as ranks:
        results = ranks.results()
    told = results[0]["told"]
    assert told[0] != told[1] != told[2]
    assert all(result["told"] == told for result in results)
    for step in range(3):
        of_model, received = [r["sent"][step] for r in results[:2]], results[2]["sent"][step]
        assert all(sent["has_base"] is (step == 0) for sent in [*of_model, received])
        sent = [each["num_bytes"] for each in of_model]
        assert sum(sent) == received["num_bytes"] and 0.4 < sent[0] / sum(sent) < 0.6


def the_others_name(ranks, gone, why):
    """Each rank but `gone` ends with an InternalError of its part of the sync, and this text."""
    for rank in set(range(len(ranks.processes))) - {gone}:
        _, error = ranks.processes[rank].communicate(timeout=60)
        called = "send_weights" if rank == 0 else "receive_weights"
        text = f"InternalError: checkpoint_engine: {called} of rank {rank} of 3: mesh: rank {gone} "
        assert ranks.processes[rank].returncode != 0 and text + why in error, error[-2000:]


@pytest.mark.parametrize("gone", [0, 1])
def test_a_killed_rank_ends_the_syncs_of_the_others_by_name(gone, tiny_llama_dir):
    with Ranks(1, 2, tiny_llama_dir, "adapter", steps=100_000) as ranks:
        ranks.wait_for_steps(1)
        ranks.processes[gone].send_signal(signal.SIGKILL)
        began = time.monotonic()
        the_others_name(ranks, gone, "has gone: its process has ended")
        assert time.monotonic() - began < 30


def test_a_rank_that_is_stopped_ends_the_syncs_of_the_others_by_name(tiny_llama_dir):
    more = {"steps": 100_000, "TWINKLE_DIST_TIMEOUT_SECONDS": "5"}
    with Ranks(1, 2, tiny_llama_dir, "adapter", **more) as ranks:
        ranks.wait_for_steps(1)
        ranks.processes[1].send_signal(signal.SIGSTOP)
        the_others_name(ranks, 1, "has been silent for 5 s: its process is stopped")


# A message for every few numbers: thousands of them in a sync.
SMALL_BUCKETS = {"BUCKET_BYTES": "32"}


def system_calls(process):
    """How often it has read or written: once or more for each message."""
    counts = Path(f"/proc/{process.pid}/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in counts if line.startswith("sysc"))


def stop_in_transfer(ranks, rank):
    """After the first step, in the middle of a sync's messages: a step without them makes a few
    calls."""
    ranks.wait_for_steps(0)
    process = ranks.processes[rank]
    first = system_calls(process)
    while system_calls(process) < first + 1000:
        assert process.poll() is None, process.stderr.read()[-4000:]
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)


def test_a_rank_that_is_stopped_in_a_transfer_is_named_by_those_that_wait_for_its_bytes(
    tiny_llama_dir,
):
    more = {"steps": 100_000, "TWINKLE_DIST_TIMEOUT_SECONDS": "5", **SMALL_BUCKETS}
    with Ranks(1, 2, tiny_llama_dir, "full", **more) as ranks:
        stop_in_transfer(ranks, 1)
        the_others_name(ranks, 1, "has been silent for 5 s: its process is stopped")


def test_a_rank_that_is_busy_in_a_transfer_for_longer_than_sockets_wait_is_waited_for(
    tiny_llama_dir,
):
    more = {"steps": 2, "SOCKETS_TIMEOUT": "8", **SMALL_BUCKETS}
    with Ranks(1, 1, tiny_llama_dir, "full", **more) as ranks:
        stop_in_transfer(ranks, 0)
        time.sleep(10)
        ranks.processes[0].send_signal(signal.SIGCONT)
        model, sampler = ranks.results()
    assert model["told"] == sampler["told"]


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_comes_late_is_waited_for_and_warned_of_once(late, tiny_llama_dir):
    more = {"LATE": str(late), "TWINKLE_DIST_TIMEOUT_SECONDS": "8"}
    with Ranks(1, 1, tiny_llama_dir, "adapter", **more) as ranks:
        model, sampler = ranks.results()
    assert model["told"] == sampler["told"]
    place = f"a sync of weights, where rank {1 - late} has waited for 8 s"
    text = f"infra: rank {late} has not come to {place}"
    assert [error.count(text) for error in ranks.errors] == [late, 1 - late]


def test_a_sampler_whose_script_ends_well_is_not_told_as_killed(tiny_llama_dir):
    with Ranks(1, 1, tiny_llama_dir, "adapter", LEAVES="1") as ranks:
        _, error = ranks.processes[0].communicate(timeout=60)
        assert "InternalError: " in error and "mesh: rank 1 has ended its script" in error, error
        assert "killed" not in error


def test_an_interrupt_ends_the_sync_of_a_rank_that_waits_and_those_of_the_others(tiny_llama_dir):
    with Ranks(1, 1, tiny_llama_dir, "adapter", COMES_WHEN_TOLD="0") as ranks:
        ranks.wait_for_steps(0)
        time.sleep(1)
        ranks.processes[1].send_signal(signal.SIGINT)
        _, error = ranks.processes[1].communicate(timeout=60)  # the other has not come
        assert "KeyboardInterrupt" in error, error[-2000:]
        _, error = ranks.processes[0].communicate("come\n", timeout=60)
        assert "rank 1 can't go on: its script was interrupted" in error, error[-2000:]


def test_a_rank_that_does_not_come_is_named_after_the_timeout(tiny_llama_dir):
    ranks = Ranks(1, 1, tiny_llama_dir, "adapter", TWINKLE_DIST_TIMEOUT_SECONDS="5")
    ranks.processes[1].send_signal(signal.SIGSTOP)  # before it is told where to come
    with ranks:
        _, error = ranks.processes[0].communicate(timeout=100)
        assert "rank 0 of 2 could not meet the others" in error, error[-2000:]
        assert "rank 1 of the group has not come" in error, error[-2000:]
