"""GRPOAdvantage and RLOOAdvantage against loops in float64."""

import random
import statistics

import numpy as np
import pytest
import torch

import twinkle
import twinkle.advantage
from twinkle.advantage import Advantage, GRPOAdvantage, RLOOAdvantage

SEED = 20261122


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


def grpo(rewards, count, scale):
    """The table of the documents, one number after the other."""
    if count == 1 and scale == "group":
        return list(rewards)
    size = count if count > 1 else len(rewards)
    out = []
    for start in range(0, len(rewards), size):
        group = rewards[start : start + size]
        by = {"none": 1.0, "batch": deviation(rewards) + 1e-8, "group": deviation(group) + 1e-8}
        out += [(r - sum(group) / len(group)) / by[scale] for r in group]
    return out


def rloo(rewards, count, scale):
    out = []
    for i, reward in enumerate(rewards):
        group = rewards[i // count * count : (i // count + 1) * count]
        others = [r for j, r in enumerate(group) if j != i % count]
        by = {"none": 1.0, "batch": deviation(rewards) + 1e-8, "group": deviation(group) + 1e-8}
        out.append((reward - sum(others) / len(others)) / by[scale])
    return out


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize(
    ("advantage", "formula", "least"), [(GRPOAdvantage(), grpo, 1), (RLOOAdvantage(), rloo, 2)]
)
def test_advantages_are_those_of_a_loop(advantage, formula, least, scale):
    rng = random.Random(SEED)
    for case in range(40):
        count, prompts = rng.randint(least, 6), rng.randint(1, 5)
        rewards = [rng.choice((0.0, 1.0, rng.gauss(0, 3))) for _ in range(count * prompts)]
        got = advantage(rewards, num_generations=count, scale=scale)
        assert got.dtype == torch.float32 and got.shape == (count * prompts,)
        expected = torch.tensor(formula(rewards, count, scale), dtype=torch.float64)
        torch.testing.assert_close(
            got.double(), expected, rtol=1e-5, atol=1e-6, msg=f"seed {SEED}, case {case}"
        )


@pytest.mark.parametrize("advantage", [GRPOAdvantage(), RLOOAdvantage()])
def test_equal_rewards_give_exact_zeros(advantage):
    """The mean of three float32 0.1 is another number, whose difference 1e-8 would blow up."""
    for scale in ("group", "batch", "none"):
        assert advantage([0.1] * 3 + [0.7] * 3, 3, scale)[:3].tolist() == [0.0] * 3
    assert GRPOAdvantage()([0.1] * 3, 1, "batch").tolist() == [0.0] * 3


def test_one_reply_to_a_prompt_and_one_reply_at_all():
    fn = GRPOAdvantage()
    assert fn([5.0]).tolist() == [5.0] and fn([5.0], 1, "batch").tolist() == [0.0]
    assert fn([], 4).tolist() == [] and fn([], 1, "batch").tolist() == []


@pytest.mark.parametrize("advantage", [GRPOAdvantage(), RLOOAdvantage()])
def test_prompts_say_which_rewards_belong_together_in_any_order(advantage):
    rng = random.Random(SEED)
    rewards = [rng.gauss(0, 1) for _ in range(12)]
    for scale in ("group", "batch", "none"):
        expected = advantage(rewards, 3, scale)
        order = rng.sample(range(12), 12)
        keys = [("prompt", i // 3) for i in order]
        got = advantage([rewards[i] for i in order], 3, scale, prompts=keys)
        torch.testing.assert_close(got, expected[order])
    # `batch * G`, as scripts sample: A B A B
    got = advantage([0.0, 1.0, 2.0, 5.0], 2, "none", prompts=["A", "B"] * 2)
    torch.testing.assert_close(got, advantage([0.0, 2.0, 1.0, 5.0], 2, "none")[[0, 2, 1, 3]])


@pytest.mark.parametrize(
    "rewards",
    [
        torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]], requires_grad=True),
        np.array([3.0, 7, 11, 15]),
        torch.tensor([3, 7, 11, 15]),
        torch.tensor([3.0, 7, 11, 15], dtype=torch.bfloat16),
        (3, 7, 11, 15),
    ],
)
def test_rewards_of_any_type_and_several_of_a_reply_which_are_summed(rewards):
    got = GRPOAdvantage()(rewards, num_generations=4, scale="none")
    assert got.tolist() == [-6.0, -2.0, 2.0, 6.0] and not got.requires_grad


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_generations": 0}, "num_generations.* is 0, it must be an integer of at least"),
        ({"num_generations": 2.0}, "num_generations.* is 2.0, it must be an integer"),
        ({"num_generations": 3}, "4 rewards are no multiple of num_generations, 3"),
        ({"scale": "prompt"}, "scale is 'prompt', it must be 'group', 'batch' or 'none'"),
        ({"rewards": [1.0, float("nan")]}, r"rewards\[1\] is nan, it must be a finite number"),
        ({"rewards": [[0, 1], [0, float("inf")]]}, r"rewards\[1, 1\] is inf, it must be a finite"),
        ({"rewards": [[1], [1, 2]]}, r"rewards is .*, it must be numbers \[N\] or \[N, K\]"),
        ({"rewards": ["a", "b"]}, "rewards is .*it must be numbers"),
        ({"rewards": 1.0}, r"the shape \(\), it must be \[N\] or \[N, K\]"),
        ({"prompts": [0, 1]}, "there are 2 prompts for 4 rewards"),
        ({"prompts": [0, 0, 0, 1]}, "prompt 0 has 3 rewards, it must have num_generations, 2"),
        ({"prompts": [{}, 0, 0, 1]}, r"prompts\[0\] is {}, it must be a number, a text"),
        ({"prompts": [([1],)] * 4}, r"prompts\[0\] is \(\[1\],\), it must be a number, a text or"),
        ({"prompts": "ABAB"}, "prompts is 'ABAB', it must be a list"),
        ({"gamma": 1}, "unknown argument 'gamma'"),
    ],
)
@pytest.mark.parametrize("advantage", [GRPOAdvantage(), RLOOAdvantage()])
def test_what_cannot_be_is_named(advantage, arguments, text):
    arguments = {"rewards": [1.0, 2.0, 3.0, 4.0], "num_generations": 2, **arguments}
    with pytest.raises(twinkle.InvalidError, match=text) as error:
        advantage(**arguments)
    assert isinstance(error.value, ValueError)


def test_rloo_needs_others_to_compare_with():
    with pytest.raises(twinkle.InvalidError, match=r"RLOOAdvantage is 1, .* at least 2"):
        RLOOAdvantage()([1.0, 2.0], num_generations=1)


def test_advantages_are_found_by_name():
    for name in ("GRPOAdvantage", "RLOOAdvantage", "GAEAdvantage"):
        made = twinkle.construct_class(name, Advantage, twinkle.advantage)
        assert type(made).__name__ == name
