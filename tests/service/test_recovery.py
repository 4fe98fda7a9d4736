"""The server is killed while clients of the real SDK work: they notice nothing, nothing is lost."""

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

tinker = pytest.importorskip("tinker")
from tinker import types  # noqa: E402

ADAM = types.AdamParams(learning_rate=1e-2)
STEPS = 20
KILLS = 10


def datum(seed):
    tokens = [1, *((i * i + 7 * seed) % 200 + 3 for i in range(12))]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def work(service, seed):
    """Trains, samples and saves; what came of it: texts that a disturbed run must repeat."""
    client = service.create_lora_training_client("tiny", rank=4, seed=seed)
    said = []
    for step in range(STEPS):
        passed = client.forward_backward([datum(seed), datum(seed + 1)], "cross_entropy")
        stepped = client.optim_step(ADAM)
        said.append(repr(passed.result().metrics["loss:sum"]))
        said.append(repr(stepped.result().metrics["unclipped_grad_l2:mean"]))
        if step % 7 == 6:
            sampler = client.save_weights_and_get_sampling_client()
            params = types.SamplingParams(max_tokens=6, seed=step, temperature=1.0)
            prompt = types.ModelInput.from_ints([1, 5, 9])
            drawn = sampler.sample(prompt, num_samples=2, sampling_params=params).result()
            said.append(repr([(s.tokens, s.logprobs) for s in drawn.sequences]))
    said.append(client.save_state("end").result().path.rpartition("/")[2])
    return said


def adapters(state):
    """The sha256 of the saved adapters, in any order of runs."""
    files = sorted(state.glob("checkpoints/*/weights/end/adapter_model.safetensors"))
    return sorted(hashlib.sha256(f.read_bytes()).hexdigest() for f in files)


@pytest.fixture(scope="module")
def undisturbed(start, tiny_llama_dir, tmp_path_factory):
    state = tmp_path_factory.mktemp("undisturbed")
    server = start(tiny_llama_dir, state)
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda seed: work(server.client(f"tml-{seed}"), seed), range(1, 5)))
    assert server.stop() == 0
    return said, adapters(state)


def test_four_clients_see_no_error_and_their_adapters_are_those_of_an_undisturbed_run(
    undisturbed, start, tiny_llama_dir, tmp_path
):
    server = start(tiny_llama_dir, tmp_path, "--snapshot-seconds", "1")
    done = threading.Event()
    kills = 0

    def clients():
        try:
            with ThreadPoolExecutor(4) as pool:
                return list(
                    pool.map(lambda seed: work(server.client(f"tml-{seed}"), seed), range(1, 5))
                )
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(clients)
        while not done.wait(0.1 + 0.15 * (kills % 4)) and kills < KILLS:
            server.kill()
            server.start_again()
            kills += 1
        said = result.result(timeout=300)
    assert server.stop() == 0
    print(f"{kills} kills")
    assert kills >= 3
    assert (said, adapters(tmp_path)) == undisturbed


def test_what_was_trained_before_a_kill_is_there_after_it(start, tiny_llama_dir, tmp_path):
    server = start(tiny_llama_dir, tmp_path)
    client = server.client().create_lora_training_client("tiny", rank=4, seed=1)
    before = client.forward_backward([datum(1)], "cross_entropy").result()
    server.kill()
    server.start_again()
    client.optim_step(ADAM).result()
    after = client.forward_backward([datum(1)], "cross_entropy").result()
    assert after.metrics["loss:sum"] < before.metrics["loss:sum"]
    assert server.stop() == 0
    begun = time.monotonic()
    server.start_again()  # after a proper end, too
    assert time.monotonic() - begun < 60
    client.save_state("end").result()
    assert server.stop() == 0
