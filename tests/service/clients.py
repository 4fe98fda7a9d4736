"""Shared by tests of the real SDK: a row, runs of the tiny model, and steps of them."""

import pytest

tinker = pytest.importorskip("tinker")
from tinker import types  # noqa: E402

TOKENS = [1, 93, 198, 204, 75, 282, 49, 14, 42, 30, 2]
ADAM = types.AdamParams(learning_rate=1e-2)


def datum(tokens=TOKENS, **inputs):
    inputs = inputs or {"weights": [1.0] * (len(tokens) - 1)}
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], **inputs},
    )


def trainer(service, **more):
    return service.create_lora_training_client("tiny", rank=4, seed=1, **more)


def sample_twelve(service):
    """Twelve samples at once come, each with its own tokens, however often they are sent."""
    sampler = service.create_sampling_client(base_model="tiny")
    prompt = types.ModelInput.from_ints(TOKENS)

    def sample(seed):
        params = types.SamplingParams(max_tokens=100, seed=seed, stop=[])
        return sampler.sample(prompt, 1, params)

    samples = [sample(seed) for seed in range(12)]
    drawn = [each.result().sequences[0].tokens for each in samples]
    assert [sample(seed).result().sequences[0].tokens for seed in range(12)] == drawn


def loss_of(client, data=None):
    return client.forward([data or datum()], "cross_entropy").result().metrics["loss:sum"]


def norm_of(step):
    """The norm of the gradients that this optim_step took."""
    return step.result().metrics["unclipped_grad_l2:mean"]


def steps(client, count, data=None):
    """Trains; the loss before each step."""
    out = []
    for _ in range(count):
        passed = client.forward_backward([data or datum()], "cross_entropy")
        client.optim_step(ADAM).result()
        out.append(passed.result().metrics["loss:sum"])
    return out
