"""The auxiliary loss of routed experts: its value and its gradients against transformers'
load_balancing_loss_func, and against DeepSeek's seq_aux spelled out, which transformers has not."""

import contextlib

import pytest
import torch
from parity import ours, reference
from parity.families import recipes as families
from parity.test_gradients import check
from torch.nn.functional import one_hot

from twinkle.errors import InvalidError

OF_ALL_LAYERS = ["qwen3_moe", "qwen2_moe", "mixtral", "qwen3_next", "qwen3_5_moe", "gpt_oss"]
OF_EACH_LAYER = ["deepseek", "deepseek_v2_lite", "deepseek_v2"]
COEFFICIENT = 2.0  # its part of a router's gradient is far above the tolerance


@contextlib.contextmanager
def routers_watched(model):
    """A list that a forward of one sequence fills: of each layer with experts the router's logits
    [T, E], with their graph, and the chosen ids [T, k]."""
    seen = []
    hooks = [
        router.register_forward_hook(lambda router, args, out: seen.append(out[::2]))
        for router in reference.routers(model)
    ]
    yield seen
    for hook in hooks:
        hook.remove()


def balance(logits, ids):
    """E sum over experts of the share of tokens that chose it times its mean probability."""
    chose = one_hot(ids, logits.shape[1]).sum(1).float()
    return logits.shape[1] * (chose.mean(0) * logits.softmax(-1).mean(0)).sum()


def aux_loss(name, routes):
    logits, ids = ([route[i] for route in routes] for i in (0, 1))
    if name in OF_ALL_LAYERS:
        return balance(torch.cat(logits), torch.cat(ids))
    each = zip(logits, ids, strict=True)
    return sum(balance(of_logits, of_ids) / of_ids.shape[1] for of_logits, of_ids in each)


def expected_of(name, model, sequences):
    """The mean of the sequences' auxiliary losses by tokens, and the gradients of loss and
    COEFFICIENT of it for each label."""
    lengths = [len(s["input_ids"]) for s in sequences]
    mean, num_tokens = 0, reference.num_tokens(sequences)
    model.zero_grad()
    for sequence, length in zip(sequences, lengths, strict=True):
        with routers_watched(model) as routes:
            loss = reference.loss(model, [sequence])
        aux = aux_loss(name, routes) * length / sum(lengths)
        (loss + COEFFICIENT * num_tokens * aux).backward()
        mean += aux.item()
    return mean, reference.accumulated(model)


def learned(made, sequences, **options):
    made.zero_grad(tenant=ours.TENANT).result()
    result = made.forward_backward(tenant=ours.TENANT, sequences=sequences, **options).result()
    return ours.accumulated(made), result


@pytest.mark.parametrize("name", OF_ALL_LAYERS + OF_EACH_LAYER)
def test_value_and_gradients_equal_the_formulas_of_each_sequence_alone(name):
    case = families.case(name)
    model = case.fresh_reference().requires_grad_(True)
    mean, grads = expected_of(name, model, case.sequences)
    made = ours.engine(case.directory, token_budget=80)  # a sequence or two a pass
    mine, result = learned(made, case.sequences, router_aux_loss_coef=COEFFICIENT)
    assert result["aux_loss"] == pytest.approx(mean, rel=1e-5)
    check(mine, case.named(grads))
    plain, without = learned(made, case.sequences)
    assert (without["aux_loss"], without["loss"]) == (0, result["loss"])
    ends = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "mlp.router.weight")
    router = next(n for n in mine if n.endswith(ends))
    assert (mine[router] - plain[router]).norm() > 0.01 * plain[router].norm()


@pytest.mark.parametrize("name", OF_ALL_LAYERS)
def test_of_one_sequence_it_is_transformers_own(name):
    case = families.case(name)
    made = ours.engine(case.directory)
    for sequence in case.sequences:
        with torch.no_grad():
            ids = torch.tensor(sequence["input_ids"])[None]
            theirs = case.reference(ids, output_router_logits=True).aux_loss.item()
        _, result = learned(made, [sequence], router_aux_loss_coef=0.001)
        assert result["aux_loss"] == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3", "glm"])
def test_a_family_without_one_refuses_it(name):
    case = families.case(name)
    made = ours.engine(case.directory)
    with pytest.raises(InvalidError, match=f"models of {name} have no auxiliary loss of experts"):
        learned(made, case.sequences, router_aux_loss_coef=0.001)
