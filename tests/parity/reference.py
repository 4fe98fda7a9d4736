"""Results of transformers and peft: every sequence alone, attention spelled out ("eager")."""

import torch

IGNORED = -100


def _scored(model, sequence, temperature=1.0):
    """Where labels are not ignored: their positions [N], and there log p [N, V], with a graph.

    The model computes as it is; of its logits the rest is computed in float64, as the exact formula
    would. In float32 the sum over SmolLM2's vocabulary alone moves gradients by up to 2e-4.
    """
    at = (torch.as_tensor(sequence["labels"]) != IGNORED).nonzero()[:, 0]
    ids = torch.as_tensor(sequence["input_ids"])[None]
    logits = model(ids, logits_to_keep=at).logits[0].double() / temperature
    return at, logits.log_softmax(-1)


def _spread(values, at, sequence):
    """[N] as float32 [length], 0 elsewhere."""
    return torch.zeros(len(sequence["labels"])).index_put((at,), values.float())


def _chosen(of_all, at, sequence):
    labels = torch.as_tensor(sequence["labels"])[at]
    return _spread(of_all.gather(1, labels[:, None])[:, 0], at, sequence)


def logps(model, sequence, temperature=1.0):
    """log p(label) of every token, 0 where the label is ignored; with a graph."""
    at, of_all = _scored(model, sequence, temperature)
    return _chosen(of_all, at, sequence)


def scores(model, sequence, temperature=1.0):
    """The same, and the entropies in nats."""
    at, of_all = _scored(model, sequence, temperature)
    entropies = -(of_all.exp() * of_all).sum(-1)
    return _chosen(of_all, at, sequence), _spread(entropies, at, sequence)


def loss(model, sequences):
    """Sum over tokens of -weight * log p(label), of one sequence after the other."""
    total = 0
    for sequence in sequences:
        value = logps(model, sequence)
        weights = sequence.get("weights")
        total = total - (value if weights is None else value * torch.tensor(weights)).sum()
    return total


def num_tokens(sequences):
    return sum(label != IGNORED for sequence in sequences for label in sequence["labels"])


def routers(model):
    """Routers of the layers that have experts."""
    found = (getattr(x.mlp, "gate", getattr(x.mlp, "router", None)) for x in model.model.layers)
    return [router for router in found if router is not None]


def gradients(model, sequences):
    """d loss / d parameter of every parameter that learns, by its name."""
    model.zero_grad()
    for sequence in sequences:
        value = loss(model, [sequence])
        if value.requires_grad:
            value.backward()
    return accumulated(model)


def accumulated(model):
    """The .grad of every parameter that learns, by its name."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def adapter_gradients(model, sequences):
    """The same with our names: model.layers.0.self_attn.q_proj.lora_A.weight."""
    return named_as_ours(gradients(model, sequences))


def named_as_ours(gradients):
    return {
        name.removeprefix("base_model.model.").replace(".default.", "."): value
        for name, value in gradients.items()
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


@torch.no_grad()
def most_probable(model, prompt, tokens):
    """For each of the tokens behind the prompt the most probable one there, by one forward of all:
    a greedy text is the same as these."""
    whole = torch.tensor([[*prompt, *tokens[:-1]]])
    return model(whole).logits[0, len(prompt) - 1 :].argmax(-1).tolist()


def is_whole(model, tokens, count):
    """True if a text of at most so many tokens has them all, or ends as the model would end it."""
    ends = torch.tensor(model.generation_config.eos_token_id or []).reshape(-1).tolist()
    ended = [token in ends for token in tokens]
    return not any(ended[:-1]) and (ended[-1] or len(tokens) == count)


def step_by_step(model, ids):
    """The logits of every token, from one forward each with transformers' own cache."""
    rows, cache = [], None
    for token in ids:
        out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        rows.append(out.logits[0, 0])
        cache = out.past_key_values
    return torch.stack(rows)
