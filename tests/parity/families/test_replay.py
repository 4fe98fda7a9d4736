"""Experts that are given in place of the routers' choice: scores and gradients are those of
transformers whose routers are told the same."""

import contextlib

import numpy as np
import pytest
import torch
from parity import ours, reference
from parity.families import recipes as families
from parity.test_gradients import check

from twinkle.data_format import LoraConfig
from twinkle.engine import Engine
from twinkle.errors import InvalidError
from twinkle.model import RouterReplayAction, TransformersModel

NORMED = {"qwen3_moe": True, "qwen2_moe": False, "mixtral": True}


@contextlib.contextmanager
def told(model, ids, normed):
    """Its routers send tokens to ids [T, layers with experts, k], with the weights of their own
    logits."""

    def replace(ids):
        def hook(router, args, out):
            weights = out[0].softmax(-1).gather(1, ids)
            return out[0], weights / weights.sum(-1, keepdim=True) if normed else weights, ids

        return hook

    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    hooks = [g.register_forward_hook(replace(ids[:, i])) for i, g in enumerate(gates)]
    yield
    for hook in hooks:
        hook.remove()


def shape_of(model):
    config = model.config
    layers = sum(hasattr(layer.mlp, "gate") for layer in model.model.layers)
    num = getattr(config, "num_experts", None) or config.num_local_experts
    return layers, config.num_experts_per_tok, num


def drawn(case, model):
    """Ids [T, layers, k] of each sequence that no router would choose, as an outside sampler's."""
    layers, k, num = shape_of(model)
    generator = torch.Generator().manual_seed(3)
    return [
        torch.rand(len(s["input_ids"]), layers, num, generator=generator).argsort(-1)[..., :k]
        for s in case.sequences
    ]


@pytest.mark.parametrize("name", NORMED)
def test_scores_and_gradients_equal_transformers_whose_routers_are_told_the_same(name):
    case = families.case(name)
    model = case.fresh_reference().requires_grad_(True)
    routes = drawn(case, model)
    sequences = [
        {**s, "routed_experts": ids.reshape(-1).numpy()}
        for s, ids in zip(case.sequences, routes, strict=True)
    ]
    made = ours.engine(case.directory, token_budget=80)
    mine, _ = ours.gradients(made, sequences)
    logps, _ = ours.scores(made, sequences)
    model.zero_grad()
    for sequence, ids, got in zip(case.sequences, routes, logps, strict=True):
        with told(model, ids, NORMED[name]):
            want = reference.logps(model, sequence)
            reference.loss(model, [sequence]).backward()
        torch.testing.assert_close(got, want.detach(), rtol=0, atol=1e-4)
    check(mine, case.named(reference.accumulated(model)))
    plain, _ = ours.scores(made, case.sequences)
    assert (plain[2] - logps[2]).abs().max() > 1e-2


def test_a_tenant_tells_where_tokens_went_and_a_model_sends_them_there():
    """The last token's may be left out, as samplers do, and attention_mask drops a token's."""
    case = families.case("qwen3_moe")
    layers, k, num = shape_of(case.reference)
    rows = [{key: s[key] for key in ("input_ids", "labels")} for s in case.sequences]
    tenant = Engine(case.directory, mixed_precision="no", device=ours.DEVICE).tenant("me")
    result = tenant.forward(rows, routed_experts=True).result()
    for row, ids in zip(rows, result["routed_experts"], strict=True):
        assert ids.shape == (len(row["input_ids"]), layers, k)
        assert (ids[..., 1:] > ids[..., :-1]).all()
        assert ids.min() >= 0
        assert ids.max() < num

    model = TransformersModel(model_id=case.directory, mixed_precision="no")
    model.add_adapter_to_model("default", LoraConfig(r=2, target_modules="all-linear"))
    own = model.forward_only(inputs=rows)["logps"]
    again = [
        {**row, "routed_experts": ids[:-1].astype(np.uint8)}
        for row, ids in zip(rows, result["routed_experts"], strict=True)
    ]
    assert torch.equal(model.forward_only(inputs=again)["logps"], own)
    recorded = model.forward_only(inputs=rows, router_replay_action=RouterReplayAction.RECORD)
    for row, ids, got in zip(
        rows, result["routed_experts"], recorded["routed_experts"], strict=True
    ):
        assert np.array_equal(got[: len(ids)], ids)
        assert (got[len(ids) :] == -1).all()
        row["routed_experts"] = got
    learned = model.forward_backward(inputs=rows, router_replay_action="REPLAY_FORWARD")
    assert torch.equal(learned["logps"], own)
    row, ids = rows[1], result["routed_experts"][1].copy()
    ids[5] = (ids[5] + 1) % num
    length = len(row["input_ids"])
    padded = {
        "input_ids": [*row["input_ids"], 0],
        "labels": [*row["labels"], -100],
        "attention_mask": [1] * length + [0],
        "routed_experts": np.concatenate([ids, ids[:1]]),
    }
    other = model.forward_only(inputs=[padded])["logps"][0, :length]
    first = next(t for t in range(5, length) if row["labels"][t] != -100)
    assert torch.equal(other[:5], own[1, :5])
    assert other[first] != own[1, first]
    sampling = {"max_tokens": 9, "seed": 3, "temperature": 1.0, "routed_experts": True}
    prompt = row["input_ids"][:20]
    (sample,) = tenant.sample([{"input_ids": prompt}], sampling).result()[0].sequences
    whole = {"input_ids": [*prompt, *sample.tokens], "labels": [-100, *prompt[1:], *sample.tokens]}
    again = tenant.forward([whole], routed_experts=True).result()["routed_experts"][0]
    assert np.array_equal(again[:-1], sample.routed_experts)
    with pytest.raises(InvalidError, match="router_replay_action is 'record', it must be None, R"):
        model.forward_only(inputs=rows, router_replay_action="record")
    with pytest.raises(InvalidError, match="RECORD, but forward_backward returns no routed_exp"):
        model.forward_backward(inputs=rows, router_replay_action=RouterReplayAction.RECORD)
    with pytest.raises(InvalidError, match=r"routed_experts of inputs\[0\] is .*be \[L, lay"):
        model.forward_only(inputs=[{**row, "routed_experts": ids[0]}])
    with pytest.raises(InvalidError, match="has 3 entries, input_ids has 66, they must be"):
        model.forward_only(inputs=[{**row, "routed_experts": ids[:3]}])
