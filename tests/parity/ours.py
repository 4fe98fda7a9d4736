"""Our engine's results, through its operations only."""

import torch

DEVICE = "cpu"  # test_on_cuda.py names another
TENANT = "parity"
GREEDY = {
    "max_tokens": 64,
    "seed": 0,
    "stop": [],
    "stop_token_ids": [],
    "temperature": 0.0,
    "top_k": -1,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "num_samples": 1,
    "logprobs": True,
    "ignore_eos": False,
}


def engine(model, /, *, precision="no", token_budget=4096, value_head=False, **create):
    """An engine with one tenant: all weights learn unless `create` says otherwise."""
    from twinkle import _core

    made = _core.Engine(
        str(model),
        mixed_precision=precision,
        token_budget=token_budget,
        device=DEVICE,
        value_head=value_head,
    )
    made.create(tenant=TENANT, **create).result()
    return made


def scores(made, sequences, **options):
    """As reference.scores, of all sequences at once; entropies are absent unless asked for."""
    result = made.forward(tenant=TENANT, sequences=sequences, **options).result()
    return tuple([torch.as_tensor(v) for v in result[key]] for key in ("logps", "entropies"))


def backward(made, sequences):
    return made.forward_backward(tenant=TENANT, sequences=sequences).result()


def accumulated(made):
    """Sums over tokens since the last step, by the weight's name."""
    tensors = made.inspect(tenant=TENANT, tensors=True).result()["tensors"]
    return {
        name.removeprefix("grad/"): torch.as_tensor(value)
        for name, value in tensors.items()
        if name.startswith("grad/")
    }


def gradients(made, sequences):
    """Those of these sequences alone, and the loss."""
    made.zero_grad(tenant=TENANT).result()
    value = backward(made, sequences)["loss"]
    return accumulated(made), value


def greedy(made, prompts, count):
    """For each prompt the tokens and their log-probabilities."""
    params = [{**GREEDY, "max_tokens": count}]
    result = made.sample(tenant=TENANT, prompts=prompts, params=params).result()
    return [(samples[0]["tokens"], samples[0]["logprobs"]) for samples in result]
