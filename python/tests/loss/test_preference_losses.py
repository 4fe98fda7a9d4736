"""Losses of preferences against loops over pairs in float64."""

import math

import numpy as np
import pytest
import torch
from loss_batches import batch, drawn_logps, gradient, ragged

import twinkle.loss
from twinkle import InvalidError
from twinkle.loss import CPOLoss, DPOLoss, ORPOLoss, SimPOLoss

pytestmark = pytest.mark.usefixtures("engine_built")

NEW, REF = drawn_logps(1), drawn_logps(2).detach()
SUMS, REF_SUMS = ([sum(row) for row in ragged(logps)] for logps in (NEW, REF))
MEANS = [np.mean(row) for row in ragged(NEW)]
CHOSEN_NLL = -np.mean(ragged(NEW)[0] + ragged(NEW)[2])


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def over_pairs(of):
    """The mean of a function of the gains over the reference, chosen and rejected."""
    gains = np.subtract(SUMS, REF_SUMS)
    return np.mean([of(gains[0], gains[1]), of(gains[2], gains[3])])


DPO = {
    "sigmoid": ({}, lambda w, r: -log_sigmoid(0.1 * (w - r))),
    "beta": ({"beta": 0.7}, lambda w, r: -log_sigmoid(0.7 * (w - r))),
    "smooth": (
        {"beta": 0.3, "label_smoothing": 0.2},
        lambda w, r: -0.8 * log_sigmoid(0.3 * (w - r)) - 0.2 * log_sigmoid(-0.3 * (w - r)),
    ),
    "hinge": ({"loss_type": "hinge", "beta": 0.4}, lambda w, r: max(0, 1 - 0.4 * (w - r))),
    "ipo": ({"loss_type": "ipo", "beta": 0.5}, lambda w, r: (0.5 * (w - r) - 1) ** 2),
    "kto_pair": (
        {"loss_type": "kto_pair", "beta": 0.2},
        lambda w, r: 1 - sigmoid(0.2 * w) + sigmoid(0.2 * r),
    ),
}
REFERENCES = {
    "ref_outputs": {"ref_outputs": {"loss": None, "logps": REF, "num_tokens": 13}},
    "ref_logps": {"ref_logps": ragged(REF)},
    "sums": {
        "ref_chosen_logps": torch.tensor(REF_SUMS[::2]),
        "ref_rejected_logps": REF_SUMS[1::2],
    },
}


@pytest.mark.parametrize("name", DPO)
@pytest.mark.parametrize("given", REFERENCES)
def test_dpo_is_its_formula(name, given):
    options, of = DPO[name]
    out = DPOLoss(**options)(batch(), {"logps": NEW}, **REFERENCES[given])
    assert out["loss"].item() == pytest.approx(over_pairs(of), rel=1e-6)
    assert out["num_tokens"] == 0


def test_sft_weight_adds_the_chosen_replies_nll():
    out = DPOLoss(sft_weight=0.5)(batch(), {"logps": NEW}, ref_logps=REF)["loss"]
    expected = over_pairs(DPO["sigmoid"][1]) + 0.5 * CHOSEN_NLL
    assert out.item() == pytest.approx(expected, rel=1e-6)


def test_reference_free_has_no_reference():
    out = DPOLoss(reference_free=True)(batch(), {"logps": NEW}, ref_logps=REF)["loss"]
    margins = [SUMS[0] - SUMS[1], SUMS[2] - SUMS[3]]
    expected = np.mean([-log_sigmoid(0.1 * m) for m in margins])
    assert out.item() == pytest.approx(expected, rel=1e-6)


def test_where_the_policy_is_the_reference_dpo_has_a_closed_form():
    """D is 0: the loss is log 2, and its gradient -beta / 2 of what is chosen."""
    out = DPOLoss(beta=0.3)(batch(), {"logps": NEW}, ref_logps=NEW.detach())["loss"]
    assert out.item() == pytest.approx(math.log(2))
    for i, row in enumerate(ragged(gradient(out, NEW))):
        assert row == pytest.approx([(-1) ** (i + 1) * 0.3 / 2 / 2] * len(row))


def odds(p):
    return p / (1 - p)


def margins(of):
    return [of(0) - of(1), of(2) - of(3)]


FREE = {
    "simpo": (
        SimPOLoss(beta=2.0, gamma=0.3),
        lambda: np.mean([-log_sigmoid(2.0 * m - 0.3) for m in margins(lambda i: MEANS[i])]),
    ),
    "cpo": (
        CPOLoss(beta=0.2, bc_coef=0.7),
        lambda: (
            np.mean([-log_sigmoid(0.2 * m) for m in margins(lambda i: SUMS[i])]) + 0.7 * CHOSEN_NLL
        ),
    ),
    "orpo": (
        ORPOLoss(lambda_orpo=0.4),
        lambda: (
            CHOSEN_NLL
            - 0.4
            * np.mean(
                [log_sigmoid(m) for m in margins(lambda i: math.log(odds(math.exp(MEANS[i]))))]
            )
        ),
    ),
}


@pytest.mark.parametrize("name", FREE)
def test_a_loss_without_reference_is_its_formula(name):
    loss, expected = FREE[name]
    out = loss(batch(), {"logps": NEW})["loss"]
    assert out.item() == pytest.approx(expected(), rel=1e-6)
    again = loss(batch(), {"logps": NEW}, ref_outputs={"logps": REF})["loss"]
    assert again.item() == out.item(), "scripts pass a reference to any of them"


@pytest.mark.parametrize("name", [*FREE, *DPO])
def test_a_gradient_is_that_of_finite_differences(name):
    loss = FREE[name][0] if name in FREE else DPOLoss(**DPO[name][0])
    given = {"ref_logps": REF}
    start = NEW.detach().double().requires_grad_()
    grad = gradient(loss(batch(), {"logps": start}, **given)["loss"], start)
    assert not grad[batch()["labels"] == -100].any()
    for i, t in ((0, 1), (1, 0), (2, 1), (3, 3)):
        step = torch.zeros(4, 6, dtype=torch.float64)
        step[i, t] = 1e-6
        up, down = (
            loss(batch(), {"logps": (start + s).detach()}, **given)["loss"] for s in (step, -step)
        )
        assert float(grad[i, t]) == pytest.approx(float(up - down) / 2e-6, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("log_p", [-1e-14, -1e-9, -0.69, -0.7, -50.0])
def test_orpos_odds_are_finite_and_exact_at_both_ends(log_p):
    """Against log p - log(1 - p) in 60 digits, from a loss that is log(1 + odds) of the rejected
    reply but for the chosen one's -log p, which lambda_orpo makes small."""
    from decimal import Decimal, getcontext

    getcontext().prec = 60

    def log_odds(x):
        x = min(Decimal(x), Decimal("-1e-12"))
        return x - (1 - x.exp()).ln()

    inputs, even = {"labels": torch.tensor([[1], [1]])}, -math.log(2)  # odds of 1
    logps = torch.tensor([[even], [log_p]], dtype=torch.float64, requires_grad=True)
    out = ORPOLoss(lambda_orpo=1e30)(inputs, {"logps": logps})["loss"]
    got = math.log(math.expm1((out.item() + even) / 1e30))
    assert got == pytest.approx(float(log_odds(log_p) - log_odds(even)), rel=1e-12)
    out.backward()
    assert torch.isfinite(logps.grad).all()


NAMES = ["DPOLoss", "SimPOLoss", "CPOLoss", "ORPOLoss"]


@pytest.mark.parametrize("name", NAMES)
def test_pairs_that_are_none_are_named(name):
    loss = getattr(twinkle.loss, name)()
    three = {key: value[:3] for key, value in batch().items()}
    with pytest.raises(InvalidError, match=f"^loss: {name} needs pairs, .* there are 3 sequences"):
        loss(three, {"logps": NEW[:3]}, ref_logps=REF[:3])
    empty = batch()
    empty["labels"][2] = -100
    with pytest.raises(
        InvalidError, match=rf"^loss: {name} compares replies, but inputs\[2\] has no label"
    ):
        loss(empty, {"logps": NEW}, ref_logps=REF)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "^loss: DPOLoss needs a reference: pass ref_outputs=model.forward_only"),
        ({"ref_outputs": {"logps": None}}, "ref_outputs must be what forward_only returned"),
        (
            {"ref_chosen_logps": [1, 2]},
            "^loss: ref_rejected_logps is missing, pass both of ref_chosen_logps and ref_rej",
        ),
        (
            {"ref_chosen_logps": [1, 2], "ref_rejected_logps": [1, 2, 3]},
            "ref_rejected_logps has 3 entries for 2 pairs",
        ),
        (
            {"ref_chosen_logps": [[-1.0, -2.0], [-3.0]], "ref_rejected_logps": [-1.0, -2.0]},
            r"^loss: ref_chosen_logps\[0\] has 2 entries, it must be one number, the sum over",
        ),
        (
            {"ref_chosen_logps": [-1.0, -2.0], "ref_rejected_logps": torch.zeros(2, 6)},
            r"^loss: ref_rejected_logps\[0\] has 6 entries, it must be one number",
        ),
        (
            {"ref_chosen_logps": [-1.0, -2.0], "ref_rejected_logps": [-1.0, []]},
            r"ref_rejected_logps\[1\] has 0 entries, it must be one number",
        ),
        (
            {"ref_chosen_logps": [-1.0, float("nan")], "ref_rejected_logps": [-1.0, -1.0]},
            r"ref_chosen_logps\[1\] has an entry that is nan or inf",
        ),
        ({"ref_logps": REF[:, :4]}, r"ref_logps of inputs\[0\] has 4 entries, it must have one"),
    ],
)
def test_a_reference_that_is_missing_or_of_another_form_is_named_and_no_zero(given, text):
    with pytest.raises(InvalidError, match=text):
        DPOLoss()(batch(), {"logps": NEW}, **given)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("DPOLoss", {"loss_type": "exo"}, "loss_type is 'exo', it must be 'sigmoid', 'hinge'"),
        ("DPOLoss", {"loss_type": ["ipo"]}, "loss_type is "),
        ("DPOLoss", {"beta": 0}, "beta is 0, it must be a number above 0"),
        (
            "DPOLoss",
            {"label_smoothing": 0.6},
            "label_smoothing is 0.6, it must be a number of at least 0, at most 0.5",
        ),
        ("DPOLoss", {"label_smoothing": -1}, "label_smoothing is -1"),
        (
            "DPOLoss",
            {"label_smoothing": 0.1, "loss_type": "ipo"},
            "label_smoothing is 0.1, but loss_type 'ipo' has none",
        ),
        ("DPOLoss", {"reference_free": 1}, "reference_free is 1, it must be True or False"),
        ("DPOLoss", {"sft_weight": -1}, "sft_weight is -1"),
        ("DPOLoss", {"ignore_index": 0}, "ignore_index is 0"),
        ("SimPOLoss", {"beta": 0}, "beta is 0"),
        ("SimPOLoss", {"gamma": None}, "gamma is None"),
        ("CPOLoss", {"beta": -1}, "beta is -1"),
        ("CPOLoss", {"bc_coef": -1}, "bc_coef is -1"),
        ("ORPOLoss", {"lambda_orpo": "a"}, "lambda_orpo is 'a'"),
    ],
)
def test_an_option_that_cannot_be_is_named(name, options, text):
    with pytest.raises(InvalidError, match=text):
        twinkle.construct_class(name, twinkle.loss.Loss, twinkle.loss, **options)
