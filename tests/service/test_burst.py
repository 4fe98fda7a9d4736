"""A burst of large requests next to many samples, by the real SDK: none fails."""

import urllib.request

import pytest
import torch

tinker = pytest.importorskip("tinker")
from tinker import types  # noqa: E402

TOKENS, TARGETS = 256, 1076  # in a request: 3.3 MB of targets and weights, little to compute
PROMPT = types.ModelInput.from_ints([1, 5, 9])


def row(seed):
    draw = torch.Generator().manual_seed(seed)
    shape = (TOKENS, TARGETS)
    targets = torch.randint(1, 300, shape, generator=draw)  # no zeros: it stays dense
    weights = torch.rand(shape, generator=draw) + 0.5
    inputs = {"target_tokens": targets, "weights": weights}
    return types.Datum(
        model_input=types.ModelInput.from_ints([3 + i % 200 for i in range(TOKENS)]),
        loss_fn_inputs={k: types.TensorData.from_torch(v) for k, v in inputs.items()},
    )


TENTH = ("--max-body-bytes", 16 << 20, "--max-body-bytes-total", 64 << 20)


# A server with that much room has less to refuse, so that only soak has it.
@pytest.fixture(params=[TENTH, pytest.param((), marks=pytest.mark.soak)], ids=["tenth", "whole"])
def burst_server(request, start, tiny_llama_dir, tmp_path):
    """With room for a tenth of the burst, and as it is."""
    it = start(tiny_llama_dir, tmp_path / "state", *map(str, request.param))
    yield it
    assert it.stop() == 0


def test_a_burst_of_large_requests_next_to_many_samples_has_no_error(burst_server):
    service = burst_server.client("tml-burst")
    client = service.create_lora_training_client("tiny", rank=4, seed=1).result()
    sampler = service.create_sampling_client(base_model="tiny")
    params = types.SamplingParams(max_tokens=4, temperature=1.0)
    one = row(1)
    assert sum(t.to_numpy().nbytes for t in one.loss_fn_inputs.values()) > 3.3e6
    passes = [client.forward_backward([one], "cross_entropy") for _ in range(208)]
    samples = [sampler.sample(PROMPT, 1, params) for _ in range(512)]
    stepped = client.optim_step(types.AdamParams(learning_rate=1e-3))
    losses = {f.result(timeout=300).metrics["loss:sum"] for f in passes}
    assert len(losses) == 1, "the weights do not change between them"
    assert all(len(f.result(timeout=300).sequences[0].tokens) <= 4 for f in samples)
    assert stepped.result(timeout=60).metrics["step"] == 1
    with urllib.request.urlopen(burst_server.url + "/metrics", timeout=10) as answer:
        assert 'status="503"' not in answer.read().decode()
