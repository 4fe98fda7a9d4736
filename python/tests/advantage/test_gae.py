"""GAEAdvantage against the sum that defines it, in float64."""

import math
import random

import pytest
import torch

import twinkle
from twinkle.advantage import GAEAdvantage

SEED = 20261122


def by_definition(rewards, values, gamma, gae_lambda):
    """Schulman et al. 2016, eq. 16: the sum over l of (gamma lambda)^l d_t+l."""
    after = [*values[1:], 0.0][: len(values)]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, after, strict=True)]
    return [
        sum((gamma * gae_lambda) ** (j - t) * deltas[j] for j in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


def drawn(rng):
    rows, width = rng.randint(1, 4), rng.randint(1, 9)

    def numbers():
        return [[rng.gauss(0, 2) for _ in range(width)] for _ in range(rows)]

    masks = [[rng.random() < 0.7 for _ in range(width)] for _ in range(rows)]
    return numbers(), numbers(), masks


@pytest.mark.parametrize("normalize", [True, False])
def test_advantages_and_returns_are_those_of_the_definition_over_the_positions_that_count(
    normalize,
):
    rng = random.Random(SEED)
    for case in range(60):
        rewards, values, masks = drawn(rng)
        gamma, gae_lambda = rng.choice((1.0, 0.9, rng.random())), rng.choice((0.95, 0.0, 1.0))
        wanted = [[0.0] * len(row) for row in rewards]
        returns = [[0.0] * len(row) for row in rewards]
        for b, mask in enumerate(masks):
            places = [t for t, counts in enumerate(mask) if counts]
            found = by_definition(
                [rewards[b][t] for t in places], [values[b][t] for t in places], gamma, gae_lambda
            )
            for t, advantage in zip(places, found, strict=True):
                wanted[b][t], returns[b][t] = advantage, advantage + values[b][t]
        counted = [a for row, mask in zip(wanted, masks, strict=True)
                   for a, m in zip(row, mask, strict=True) if m]  # fmt: skip
        if normalize and counted:
            mean = sum(counted) / len(counted)
            std = math.sqrt(sum((a - mean) ** 2 for a in counted) / len(counted))
            wanted = [
                [(a - mean) / (std + 1e-8) if m else 0.0 for a, m in zip(row, mask, strict=True)]
                for row, mask in zip(wanted, masks, strict=True)
            ]
        got = GAEAdvantage(gamma, gae_lambda)(rewards, values, masks=masks, normalize=normalize)
        for one, other in zip(got, (wanted, returns), strict=True):
            assert one.dtype == torch.float32
            torch.testing.assert_close(
                one, torch.tensor(other), rtol=1e-5, atol=1e-5, msg=f"seed {SEED}, case {case}"
            )


def test_without_masks_all_counts_and_a_vector_is_one_reply():
    fn = GAEAdvantage(normalize=False)
    advantages, returns = fn([0.0, 0.0, 1.0], [0.5, 0.25, 0.5])
    assert advantages.shape == (1, 3)
    torch.testing.assert_close(
        advantages[0], torch.tensor(by_definition([0.0, 0, 1], [0.5, 0.25, 0.5], 1.0, 0.95))
    )
    torch.testing.assert_close(returns, advantages + torch.tensor([[0.5, 0.25, 0.5]]))


def test_with_lambda_and_gamma_of_1_returns_are_the_rewards_to_go():
    _, returns = GAEAdvantage(1, 1)([[1.0, 2.0, 3.0]], [[9.0, -7.0, 5.0]])
    torch.testing.assert_close(returns, torch.tensor([[6.0, 5.0, 3.0]]))


def test_what_stands_where_nothing_counts_is_not_looked_at():
    nan = float("nan")
    rewards, values = [[1.0, nan, 2.0]], [[0.5, nan, nan]]
    advantages, returns = GAEAdvantage()(rewards, values, masks=[[1, 0, 0]], normalize=False)
    assert advantages.tolist() == [[0.5, 0, 0]] and returns.tolist() == [[1.0, 0, 0]]
    advantages, returns = GAEAdvantage()(rewards, values, masks=[[0, 0, 0]])
    assert advantages.tolist() == returns.tolist() == [[0.0] * 3]
    with pytest.raises(twinkle.InvalidError, match=r"values\[0, 2\] is nan"):
        GAEAdvantage()(rewards, values, masks=[[1, 0, 1]])


def test_inputs_stay_as_they_are_and_nothing_requires_a_gradient():
    rewards, values = torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)
    masks = torch.tensor([[1, 1, 0], [1, 0, 1]])
    advantages, returns = GAEAdvantage()(rewards, values, masks=masks)
    assert not advantages.requires_grad and not returns.requires_grad
    assert rewards.tolist() == values.tolist() == [[1.0] * 3] * 2


def test_token_rewards_are_the_last_ones_and_the_distance_to_the_reference():
    build = GAEAdvantage.build_token_rewards
    assert build([1.0, -2.0], [2, 3]) == [[0.0, 1.0], [0.0, 0.0, -2.0]]
    got = build([1.0, 0.5], [2, 1], old_logps=[[-1.0, -2.0], [-3.0]],
                ref_logps=[[-1.5, -1.0], [-3.0]], kl_coef=0.1)  # fmt: skip
    for row, wanted in zip(got, [[-0.05, 0.1 + 1.0], [0.5]], strict=True):
        assert row == pytest.approx(wanted)
    assert build(torch.tensor([2.0]), torch.tensor([1])) == [[2.0]] and build([], []) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"gamma": 1.1}, "gamma is 1.1, it must be a number from 0 to 1"),
        ({"gae_lambda": -0.1}, "gae_lambda is -0.1, it must be a number from 0 to 1"),
        ({"gae_lambda": "x"}, "gae_lambda is 'x', it must be a number"),
        ({"normalize": 1}, "normalize is 1, it must be True or False"),
    ],
)
def test_wrong_settings_are_named(arguments, text):
    with pytest.raises(twinkle.InvalidError, match=text):
        GAEAdvantage(**arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"values": [[1.0, 2.0]]}, r"values have the shape \(1, 2\), rewards \(1, 3\)"),
        ({"masks": [[1, 1]]}, r"masks have the shape \(1, 2\), rewards \(1, 3\)"),
        ({"rewards": [[1.0], [1.0, 2.0]]}, r"rewards is .*numbers \[B, T\] \(pad replies"),
        ({"rewards": torch.zeros(1, 1, 3)}, r"the shape \(1, 1, 3\), it must be \[B, T\]"),
        ({"rewards": [[0.0, float("inf"), 0.0]]}, r"rewards\[0, 1\] is inf"),
        ({"normalize": "yes"}, "normalize is 'yes', it must be True or False"),
        ({"scale": "group"}, "unknown argument 'scale'"),
    ],
)
def test_wrong_inputs_are_named(arguments, text):
    arguments = {"rewards": [[0.0, 0, 1]], "values": [[0.0, 0, 0]], **arguments}
    with pytest.raises(twinkle.InvalidError, match=text):
        GAEAdvantage()(**arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"lengths": [2]}, "there are 1 lengths for 2 rewards"),
        ({"lengths": [2, 0]}, r"lengths\[1\] is 0, it must be an integer of at least 1"),
        ({"rewards": [[1.0], [2.0]]}, r"rewards have the shape \(2, 1\), it must be \[B\]"),
        ({"rewards": [1.0, float("nan")]}, r"rewards\[1\] is nan"),
        ({"ref_logps": None}, "old_logps and ref_logps go together"),
        ({"old_logps": None, "ref_logps": None, "kl_coef": 0.1}, "kl_coef is 0.1, for which"),
        ({"kl_coef": -1}, "kl_coef is -1, it must be a number of at least 0"),
        ({"old_logps": 5, "ref_logps": 5}, "old_logps is 5, it must be a list of log-prob"),
        ({"ref_logps": torch.zeros(())}, r"ref_logps is tensor\(0.\), it must be a list of log"),
        ({"ref_logps": "ab"}, "ref_logps is 'ab', it must be a list of log-prob"),
        ({"old_logps": [[0.0, 0.0]]}, "there are 1 old_logps for 2 rewards"),
        ({"old_logps": [[0.0, 0.0], [0.0, 0.0]]}, r"old_logps\[1\] has the shape \(2,\), .* 1 tok"),
    ],
)
def test_wrong_token_rewards_are_named(arguments, text):
    logps = [[0.0, 0.0], [0.0]]
    arguments = {"rewards": [1.0, 2.0], "lengths": [2, 1], "old_logps": logps, "ref_logps": logps,
                 **arguments}  # fmt: skip
    with pytest.raises(twinkle.InvalidError, match=text):
        GAEAdvantage.build_token_rewards(**arguments)
