"""What transformers and peft say: every sequence alone, attention spelled out ("eager")."""

import torch

IGNORED = -100


def scores(model, sequence, temperature=1.0):
    """log p(label) and entropy of every token, both 0 where the label is ignored; with a graph.

    The model computes as it is; of its logits the rest is computed in float64, as the exact formula
    would. In float32 the sum over SmolLM2's vocabulary alone moves gradients by up to 2e-4.
    """
    logits = model(torch.as_tensor(sequence["input_ids"])[None]).logits[0].double() / temperature
    logps = logits.log_softmax(-1)
    labels = torch.as_tensor(sequence["labels"])
    scored = labels != IGNORED
    chosen = logps.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    entropies = -(logps.exp() * logps).sum(-1)
    return tuple(torch.where(scored, value, 0.0).float() for value in (chosen, entropies))


def loss(model, sequences):
    """Sum over tokens of -weight * log p(label), of one sequence after the other."""
    total = 0
    for sequence in sequences:
        logps, _ = scores(model, sequence)
        weights = sequence.get("weights")
        total = total - (logps if weights is None else logps * torch.tensor(weights)).sum()
    return total


def num_tokens(sequences):
    return sum(label != IGNORED for sequence in sequences for label in sequence["labels"])


def gradients(model, sequences):
    """d loss / d parameter of every parameter that learns, by its name."""
    model.zero_grad()
    for sequence in sequences:
        value = loss(model, [sequence])
        if value.requires_grad:
            value.backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def adapter_gradients(model, sequences):
    """The same with our names: model.layers.0.self_attn.q_proj.lora_A.weight."""
    return {
        name.removeprefix("base_model.model.").replace(".default.", "."): value
        for name, value in gradients(model, sequences).items()
    }


def greedy(model, prompt, count):
    """The most probable tokens after the prompt.

    With a window of 1 the whole text is computed anew for every token: there transformers 5.23
    generates other tokens than its own forward gives (test_generation.py proves it).
    DynamicSlidingWindowLayer keeps keys[-window + 1 :], which for 1 is keys[0:], all of them, in
    place of none.
    """
    ids = torch.as_tensor(prompt)[None]
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        use_cache=getattr(model.config, "sliding_window", None) != 1,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def step_by_step(model, ids):
    """The logits of every token, from one forward each with transformers' own cache."""
    rows, cache = [], None
    for token in ids:
        out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        rows.append(out.logits[0, 0])
        cache = out.past_key_values
    return torch.stack(rows)
