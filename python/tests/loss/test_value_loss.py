"""PPOValueLoss against its formula, one label after the other, and against differences."""

import numpy as np
import pytest
import torch

import twinkle
import twinkle.loss
from twinkle.errors import InvalidError
from twinkle.loss import Loss, PPOValueLoss

LABELS = torch.tensor([[-100, 4, 5, -100, 6], [7, 8, 9, -100, -100]])
INPUTS = {"labels": LABELS, "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}
MASK = LABELS != -100
OLD = [[0.5, -1.0, 2.0], [0.0, 0.3, -0.2]]
RETURNS = [[1.0, -1.0, 0.0], [0.25, -2.0, 3.0]]
FLAT_OLD, FLAT_RETURNS = [*OLD[0], *OLD[1]], [*RETURNS[0], *RETURNS[1]]


def values():
    """On both sides of the clip of 0.2 around OLD, and within."""
    out = torch.zeros(2, 5)
    out[MASK] = torch.tensor([0.9, -1.1, 1.0, -0.1, 0.35, 0.3])
    return out.requires_grad_()


def by_hand(flat, epsilon):
    """The mean over labels of 1/2 max((v - r)^2, (clip(v) - r)^2), in Python's floats."""
    terms = []
    for v, old, wanted in zip(flat, FLAT_OLD, FLAT_RETURNS, strict=True):
        clipped = min(max(v, old - epsilon), old + epsilon)
        terms.append(0.5 * max((v - wanted) ** 2, (clipped - wanted) ** 2))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("epsilon", [0.2, 0.05, 10.0, float("inf")])
def test_the_loss_and_its_gradient_are_the_formulas(epsilon):
    given = values()
    out = PPOValueLoss(epsilon)(INPUTS, {"values": given}, old_values=OLD, returns=RETURNS)
    flat = given.detach()[MASK].double().tolist()
    assert out["num_tokens"] == 0
    assert out["loss"].item() == pytest.approx(by_hand(flat, epsilon), rel=1e-12)
    (grad,) = torch.autograd.grad(out["loss"], given)
    assert not grad[~MASK].any()
    for i, slope in enumerate(grad[MASK].tolist()):
        step = np.eye(len(flat))[i] * 1e-6
        high, low = (by_hand((np.array(flat) + sign * step).tolist(), epsilon) for sign in (1, -1))
        assert slope == pytest.approx((high - low) / 2e-6, abs=1e-6)


def test_a_label_whose_clipped_term_is_greater_learns_nothing():
    given = values()
    out = PPOValueLoss()(INPUTS, {"values": given}, old_values=OLD, returns=RETURNS)
    (grad,) = torch.autograd.grad(out["loss"], given)
    # 0.9 is 0.4 above 0.5, on its way to 1: the clipped 0.7 is farther from it
    assert (grad[MASK] == 0).tolist() == [True, False, True, False, False, True]


def test_extras_may_be_one_number_a_label_or_a_position_each():
    def of(**kwargs):
        return PPOValueLoss()(INPUTS, {"values": values()}, **kwargs)["loss"].item()

    wide = torch.full((2, 5), 7.0, dtype=torch.float64)
    wide[MASK] = torch.tensor(FLAT_OLD, dtype=torch.float64)
    plain = of(old_values=OLD, returns=RETURNS)
    assert of(old_values=wide, returns=RETURNS) == plain
    assert of(old_values=wide.numpy(), returns=RETURNS, advantages=[1, 2]) == plain
    one = of(old_values=[0.5, 1], returns=[1, 2.0])
    assert one == of(old_values=[[0.5] * 3, [1] * 3], returns=[[1] * 3, [2] * 3])


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"returns": RETURNS}, "PPOValueLoss needs old_values: pass old_values=forward_only"),
        ({"old_values": OLD}, "PPOValueLoss needs returns"),
        ({"old_values": OLD, "returns": [1.0]}, "returns has 1 entries for 2 sequences"),
        (
            {"old_values": [[1, 2], [1, 2, 3]], "returns": RETURNS},
            r"old_values of inputs\[0\] has 2 entries, it must have one for each of its 3 labels",
        ),
        ({"old_values": OLD, "returns": [[1, 2, float("nan")], 0]}, "entry that is nan or inf"),
    ],
)
def test_extras_that_do_not_fit_are_named(kwargs, text):
    with pytest.raises(InvalidError, match=text):
        PPOValueLoss()(INPUTS, {"values": values()}, **kwargs)


@pytest.mark.parametrize("epsilon", [0, -0.1, float("nan"), "0.2", True, None])
def test_a_clip_that_cannot_be_is_refused(epsilon):
    with pytest.raises(InvalidError, match="loss: epsilon is"):
        PPOValueLoss(epsilon)


def test_it_is_found_by_its_name():
    made = twinkle.construct_class("PPOValueLoss", Loss, twinkle.loss, epsilon=0.5)
    assert made.epsilon == 0.5 and made.require_values and not made.require_logps


def test_a_reward_models_scores_are_the_values_at_last_labels():
    values = torch.tensor([[9.0, 0.5, 0.0], [9.0, 9.0, -0.25], [1.0, 0.0, 0.0], [9.0, 2.0, 9.0]])
    values.requires_grad_()
    labels = torch.tensor([[1, 2, -100], [3, 4, 5], [6, -100, -100], [7, 8, -100]])
    loss = twinkle.loss.RewardLoss(center_rewards_coefficient=0.1)
    out = loss({"labels": labels}, {"values": values})["loss"]
    margins = torch.tensor([0.75, -1.0], dtype=torch.float64)
    expected = -torch.nn.functional.logsigmoid(margins).mean() + 0.1 * (0.25**2 + 3**2) / 2
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=0)
    (grad,) = torch.autograd.grad(out, values)
    assert (grad != 0).nonzero().tolist() == [[0, 1], [1, 2], [2, 0], [3, 1]]
    scores = torch.tensor([[0.5], [-0.25], [1.0], [2.0]])
    assert loss({}, {"logits": scores})["loss"] == out
    with pytest.raises(InvalidError, match=r"RewardLoss needs pairs, .* but there are 3 sequences"):
        loss({"labels": labels[:3]}, {"values": values[:3]})
