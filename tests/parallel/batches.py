"""Batches that scripts of tests/parallel and tests/ray train on, and a short loop over them."""

import numpy as np


def batch_of(step, rows=8):
    """Rows of 5 to 39 drawn ids, the same in every process."""
    rng = np.random.default_rng(step)
    out = []
    for _ in range(rows):
        ids = rng.integers(3, 120, int(rng.integers(5, 40)))
        out.append({"input_ids": ids, "labels": np.append(ids[1:], -100)})
    return out


def trained(model, mesh, batches, r, accumulated=1):
    """Losses and norms. A scale of 3 is no power of two: products are rounded, as most users'."""
    from twinkle import LoraConfig

    config = LoraConfig(r=r, lora_alpha=3 * r, target_modules="all-linear", lora_dropout=0.1)
    model.add_adapter_to_model("default", config, gradient_accumulation_steps=accumulated)
    model.set_optimizer("AdamW", lr=1e-3)
    told = []
    for batch in batches:
        model.forward_backward(inputs=batch[mesh.get_slice(len(batch))])
        model.clip_grad_and_step()
        metric = model.calculate_metric(is_training=True)
        told.append([metric["loss"], metric.get("grad_norm")])
    return told


def sampled(model, mesh, prompts, max_tokens):
    """Tokens and their logprobs."""
    from twinkle.sampler import TorchSampler

    replies = TorchSampler(model=model).sample(
        [{"input_ids": ids} for ids in prompts[mesh.get_slice(len(prompts))]],
        {"max_tokens": max_tokens, "seed": 3, "logprobs": 1},
        adapter_name="default",
    )
    return [[list(map(int, s.tokens)), s.logprobs] for r in replies for s in r.sequences]
