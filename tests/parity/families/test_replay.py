"""Experts that are given in place of the routers' choice: scores and gradients are those of
transformers whose routers are told the same."""

import contextlib
from types import SimpleNamespace

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
from twinkle.sampler import TorchSampler

# True if its weights sum to 1.
SOFTMAX = {"qwen3_moe": True, "qwen2_moe": False, "mixtral": True, "gpt_oss": True}
SOFTMAX |= {"deepseek": True, "deepseek_v2_lite": False, "deepseek_v2": False}
SOFTMAX |= {"qwen3_next": True, "qwen3_5_moe": True}
SIGMOID = {"deepseek_v3": True, "glm4_moe": True}  # groups and corrections make its choice
NORMED = SOFTMAX | SIGMOID


@contextlib.contextmanager
def told(model, ids, name):
    """Its routers send tokens to ids [T, layers with experts, k], with the weights of their own
    logits."""
    scale = getattr(model.config, "routed_scaling_factor", 1)

    def replace(ids):
        def hook(router, args, out):
            scores = out[0].sigmoid() if name in SIGMOID else out[0].softmax(-1)
            weights = scores.gather(1, ids)
            if NORMED[name]:
                weights = weights / weights.sum(-1, keepdim=True)
            return out[0], weights * scale, ids

        return hook

    gates = reference.routers(model)
    hooks = [g.register_forward_hook(replace(ids[:, i])) for i, g in enumerate(gates)]
    yield
    for hook in hooks:
        hook.remove()


def shape_of(model):
    config = model.config
    layers = len(reference.routers(model))
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
        with told(model, ids, name):
            want = reference.logps(model, sequence)
            reference.loss(model, [sequence]).backward()
        torch.testing.assert_close(got, want.detach(), rtol=0, atol=1e-4)
    check(mine, case.named(reference.accumulated(model)))
    plain, _ = ours.scores(made, case.sequences)
    assert (plain[2] - logps[2]).abs().max() > 1e-2


@pytest.fixture(scope="module")
def both():
    """A tenant and a model of the same weights, and where tokens of rows went."""
    case = families.case("qwen3_moe")
    rows = [{key: s[key] for key in ("input_ids", "labels")} for s in case.sequences]
    tenant = Engine(case.directory, mixed_precision="no", device=ours.DEVICE).tenant("me")
    model = TransformersModel(model_id=case.directory, mixed_precision="no")
    model.add_adapter_to_model("default", LoraConfig(r=2, target_modules="all-linear"))
    routes = tenant.forward(rows, routed_experts=True).result()["routed_experts"]
    own = model.forward_only(inputs=rows)["logps"]
    return SimpleNamespace(
        tenant=tenant,
        model=model,
        rows=rows,
        routes=routes,
        own=own,
        shape=shape_of(case.reference),
    )


def test_a_tenant_and_a_model_tell_where_tokens_went_and_send_them_there(both):
    """The last token's may be left out, as samplers do."""
    layers, k, num = both.shape
    recorded = both.model.forward_only(
        inputs=both.rows, router_replay_action=RouterReplayAction.RECORD
    )["routed_experts"]
    short, padded = [], []
    for row, ids, got in zip(both.rows, both.routes, recorded, strict=True):
        assert ids.shape == (len(row["input_ids"]), layers, k)
        assert (ids[..., 1:] > ids[..., :-1]).all()
        assert ids.min() >= 0
        assert ids.max() < num
        assert np.array_equal(got[: len(ids)], ids)
        assert (got[len(ids) :] == -1).all()
        short.append({**row, "routed_experts": ids[:-1].astype(np.uint8)})
        padded.append({**row, "routed_experts": got})
    assert torch.equal(both.model.forward_only(inputs=short)["logps"], both.own)
    learned = both.model.forward_backward(inputs=padded, router_replay_action="REPLAY_FORWARD")
    assert torch.equal(learned["logps"], both.own)


def test_another_route_of_a_token_changes_what_follows_it(both):
    """attention_mask drops a token's."""
    row, ids = both.rows[1], both.routes[1].copy()
    ids[5] = (ids[5] + 1) % both.shape[2]
    length = len(row["input_ids"])
    padded = {
        "input_ids": [*row["input_ids"], 0],
        "labels": [*row["labels"], -100],
        "attention_mask": [1] * length + [0],
        "routed_experts": np.concatenate([ids, ids[:1]]),
    }
    other = both.model.forward_only(inputs=[padded])["logps"][0, :length]
    first = next(t for t in range(5, length) if row["labels"][t] != -100)
    assert torch.equal(other[:5], both.own[1, :5])
    assert other[first] != both.own[1, first]


def test_a_sample_tells_where_its_tokens_went(both):
    prompt = both.rows[1]["input_ids"][:20]
    sampling = {"max_tokens": 9, "seed": 3, "temperature": 1.0, "routed_experts": True}
    (sample,) = both.tenant.sample([{"input_ids": prompt}], sampling).result()[0].sequences
    whole = {"input_ids": [*prompt, *sample.tokens], "labels": [-100, *prompt[1:], *sample.tokens]}
    again = both.tenant.forward([whole], routed_experts=True).result()["routed_experts"][0]
    assert np.array_equal(again[:-1], sample.routed_experts)
    sampler = TorchSampler(model=both.model, engine_args={"enable_return_routed_experts": True})
    (same,) = sampler.sample([{"input_ids": prompt}], max_tokens=9, seed=3)[0].sequences
    assert np.array_equal(same.routed_experts, sample.routed_experts)


def test_what_cannot_be_is_refused(both):
    model, row, ids = both.model, both.rows[1], both.routes[1]
    with pytest.raises(InvalidError, match="router_replay_action is 'record', it must be None, R"):
        model.forward_only(inputs=[row], router_replay_action="record")
    with pytest.raises(InvalidError, match="RECORD, but forward_backward returns no routed_exp"):
        model.forward_backward(inputs=[row], router_replay_action=RouterReplayAction.RECORD)
    with pytest.raises(InvalidError, match=r"routed_experts of inputs\[0\] is .*be \[L, lay"):
        model.forward_only(inputs=[{**row, "routed_experts": ids[0]}])
    with pytest.raises(InvalidError, match=r"inputs\[0\] is \[L, 1, \d\], it must be \[L, [2-9], "):
        model.forward_only(inputs=[{**row, "routed_experts": ids[:, :1]}])
    with pytest.raises(InvalidError, match="has 3 entries, input_ids has 66, they must be"):
        model.forward_only(inputs=[{**row, "routed_experts": ids[:3]}])
