"""Losses of reinforcement learning against loops over sequences and tokens."""

import math

import numpy as np
import pytest
import torch
from loss_batches import COUNTS, batch, by_hand, drawn_logps, gradient, ragged

import twinkle.loss
from twinkle import InvalidError
from twinkle.loss import CISPOLoss, DRGRPOLoss, GRPOLoss, GSPOLoss, PPOLoss, SAPOLoss

pytestmark = pytest.mark.usefixtures("engine_built")

ADVANTAGES = [0.7, -1.3, 2.0, -0.4]
NEW, OLD, REF = drawn_logps(1), drawn_logps(2).detach(), drawn_logps(3).detach()
NAMES = ["GRPOLoss", "PPOLoss", "GSPOLoss", "SAPOLoss", "CISPOLoss", "BNPOLoss", "DRGRPOLoss"]


def clip(r, low, high):
    return min(max(r, low), high)


def surrogate(low=0.2, high=0.2):
    """-min(r A, clip(r) A) of a sequence's advantage."""

    def of(i, new, old):
        r, a = math.exp(new - old), ADVANTAGES[i]
        return -min(r * a, clip(r, 1 - low, 1 + high) * a)

    return of


def soft(i, new, old):
    a = ADVANTAGES[i]
    tau = 1.5 if a > 0 else 0.6
    return -4 / tau / (1 + math.exp(-tau * (math.exp(new - old) - 1))) * a


def clipped_weight(i, new, old):
    return -min(math.exp(new - old), 1.3) * ADVANTAGES[i] * new


def of_sequences(rows):
    return np.mean([np.mean(row) for row in rows])


def of_tokens(rows):
    return np.mean(np.concatenate(rows))


def sequence_ratios(rows_new, rows_old):
    """GSPO: every token of a sequence has the sequence's ratio."""
    out = []
    for i, (new, old) in enumerate(zip(rows_new, rows_old, strict=True)):
        r, a = math.exp(np.mean(np.subtract(new, old))), ADVANTAGES[i]
        out.append(-min(r * a, clip(r, 0.8, 1.25) * a))
    return np.mean(out)


CASES = {
    "grpo": (GRPOLoss(), lambda: of_sequences(by_hand(surrogate(), NEW, OLD))),
    "grpo high": (
        GRPOLoss(epsilon=0.1, epsilon_high=0.5),
        lambda: of_sequences(by_hand(surrogate(0.1, 0.5), NEW, OLD)),
    ),
    "ppo": (PPOLoss(), lambda: of_tokens(by_hand(surrogate(), NEW, OLD))),
    "ppo of sequences": (
        PPOLoss(loss_agg_mode="seq-mean-token-mean"),
        lambda: of_sequences(by_hand(surrogate(), NEW, OLD)),
    ),
    "gspo": (GSPOLoss(0.2, 0.25), lambda: sequence_ratios(ragged(NEW), ragged(OLD))),
    "sapo": (
        SAPOLoss(tau_pos=1.5, tau_neg=0.6, epsilon_high=0.1),
        lambda: of_sequences(by_hand(soft, NEW, OLD)),
    ),
    "cispo": (
        CISPOLoss(epsilon=0.1, epsilon_high=0.3),
        lambda: of_tokens(by_hand(clipped_weight, NEW, OLD)),
    ),
    "bnpo": (twinkle.loss.BNPOLoss(), lambda: of_tokens(by_hand(surrogate(), NEW, OLD))),
    "dr_grpo": (
        DRGRPOLoss(max_completion_length=10),
        lambda: np.sum(np.concatenate(by_hand(surrogate(), NEW, OLD))) / 40,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_its_formula(name):
    loss, expected = CASES[name]
    out = loss(batch(), {"logps": NEW}, old_logps=ragged(OLD), advantages=ADVANTAGES)
    assert out["loss"].item() == pytest.approx(expected(), rel=1e-6)
    assert out["num_tokens"] == 0 and out["loss"].dtype == torch.float64
    assert not gradient(out["loss"], NEW)[batch()["labels"] == -100].any()


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_that_of_finite_differences(name):
    loss, _ = CASES[name]
    given = {"old_logps": OLD, "advantages": ADVANTAGES}
    start = NEW.detach().double().requires_grad_()
    grad = gradient(loss(batch(), {"logps": start}, **given)["loss"], start)
    for i, t in ((0, 1), (1, 0), (1, 5), (2, 1), (3, 3)):
        step = torch.zeros(4, 6, dtype=torch.float64)
        step[i, t] = 1e-6
        if name == "cispo":  # its weight is a constant
            weight = min(math.exp((NEW - OLD)[i, t].item()), 1.3)
            expected = -weight * ADVANTAGES[i] / sum(COUNTS)
        else:
            up, down = (
                loss(batch(), {"logps": (start + s).detach()}, **given)["loss"]
                for s in (step, -step)
            )
            expected = float(up - down) / 2e-6
        assert float(grad[i, t]) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def kl(i, new, ref):
    return math.exp(ref - new) - (ref - new) - 1


@pytest.mark.parametrize("how", ["ref_logps", "ref_outputs"])
def test_beta_adds_the_divergence_from_the_reference(how):
    given = {"ref_logps": ragged(REF)} if how == "ref_logps" else {"ref_outputs": {"logps": REF}}
    out = GRPOLoss(beta=0.3)(batch(), {"logps": NEW}, old_logps=OLD, advantages=ADVANTAGES, **given)
    expected = of_sequences(by_hand(surrogate(), NEW, OLD))
    expected += 0.3 * of_sequences(by_hand(kl, NEW, REF))
    assert out["loss"].item() == pytest.approx(expected, rel=1e-6)


def test_entropy_coef_takes_the_entropy_off():
    entropies = drawn_logps(5).detach().abs().requires_grad_()
    loss = GRPOLoss(entropy_coef=0.01)
    assert loss.require_entropy and not GRPOLoss().require_entropy
    outputs = {"logps": NEW, "entropies": entropies}
    out = loss(batch(), outputs, old_logps=OLD, advantages=ADVANTAGES)["loss"]
    expected = of_sequences(by_hand(surrogate(), NEW, OLD))
    expected -= 0.01 * of_sequences(ragged(entropies))
    assert out.item() == pytest.approx(expected, rel=1e-6)
    grad = gradient(out, entropies)[1]
    torch.testing.assert_close(grad, torch.full((6,), -0.01 / 6 / 4))


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_the_gradient_is_the_policy_gradient(name):
    """Where the policy itself sampled, r is 1 and nothing is clipped: the gradient of lp is -A,
    divided by what the class averages over."""
    loss = getattr(twinkle.loss, name)()
    divisor = {"PPOLoss": 13, "CISPOLoss": 13, "BNPOLoss": 13, "DRGRPOLoss": 4 * 1024}.get(name)
    for old in (None, NEW.detach()):
        out = loss(batch(), {"logps": NEW}, old_logps=old, advantages=ADVANTAGES)["loss"]
        for i, row in enumerate(ragged(gradient(out, NEW))):
            expected = -ADVANTAGES[i] / (divisor or 4 * COUNTS[i])
            assert row == pytest.approx([expected] * COUNTS[i], rel=1e-5)
    if name in ("GRPOLoss", "GSPOLoss"):  # closed form: a mean of advantages
        assert out.item() == pytest.approx(-np.mean(ADVANTAGES), rel=1e-6)


def test_every_token_may_have_an_advantage_of_its_own():
    each = drawn_logps(7).detach()
    out = PPOLoss()(batch(), {"logps": NEW}, old_logps=OLD, advantages=ragged(each))["loss"]
    terms = by_hand(
        lambda i, n, o, a: -min(math.exp(n - o) * a, clip(math.exp(n - o), 0.8, 1.2) * a),
        NEW, OLD, each,
    )  # fmt: skip
    assert out.item() == pytest.approx(of_tokens(terms), rel=1e-6)


def test_a_ratio_beyond_e_to_the_20_is_held_there():
    far = NEW.detach() - 100
    out = CISPOLoss(epsilon=1e12)(batch(), {"logps": NEW}, old_logps=far, advantages=[1, 0, 0, 0])[
        "loss"
    ]
    expected = -math.exp(20) * sum(ragged(NEW)[0]) / 13
    assert out.item() == pytest.approx(expected, rel=1e-6)


def test_a_ratio_below_e_to_the_minus_20_is_held_there():
    near = NEW.detach().clone()
    near[0, 1] += 100  # 3 labels, whose mean GSPO takes
    out = GSPOLoss()(batch(), {"logps": NEW}, old_logps=near, advantages=[1, 0, 0, 0])["loss"]
    assert out.item() == pytest.approx(-math.exp(-20 / 3) / 4, rel=1e-6)


def test_a_sequence_without_labels_counts_as_0():
    inputs = batch()
    inputs["labels"][2] = -100
    out = GRPOLoss()(inputs, {"logps": NEW}, advantages=ADVANTAGES)["loss"]
    assert out.item() == pytest.approx(-(0.7 - 1.3 - 0.4) / 4, rel=1e-6)


def test_num_items_in_batch_divides_the_sum_of_cispo():
    given = {"old_logps": OLD, "advantages": ADVANTAGES}
    whole = CISPOLoss()(batch(), {"logps": NEW}, **given)["loss"].item()
    out = CISPOLoss()(batch(), {"logps": NEW}, num_items_in_batch=26, **given)["loss"].item()
    assert out == pytest.approx(whole / 2)
    with pytest.raises(InvalidError, match="num_items_in_batch is 0, it must be an integer of"):
        CISPOLoss()(batch(), {"logps": NEW}, num_items_in_batch=0, **given)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_named_and_no_zero(name):
    cls = getattr(twinkle.loss, name)
    with pytest.raises(InvalidError, match=rf"^loss: {name} needs advantages: pass advantages="):
        cls()(batch(), {"logps": NEW}, old_logps=OLD)
    with pytest.raises(InvalidError, match=rf"^loss: {name} needs a reference: pass ref_outputs="):
        cls(beta=0.1)(batch(), {"logps": NEW}, advantages=ADVANTAGES)
    with pytest.raises(InvalidError, match="ref_outputs must be what forward_only returned"):
        cls(beta=0.1)(batch(), {"logps": NEW}, advantages=ADVANTAGES, ref_outputs={"loss": 1})
    with pytest.raises(InvalidError, match=r"^loss: old_logps of inputs\[3\] has 2 entries"):
        cls()(batch(), {"logps": NEW}, advantages=ADVANTAGES, old_logps=[1, 2, 3, [1, 2]])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("GRPOLoss", {"epsilon": -0.1}, "epsilon is -0.1, it must be a number of at least 0"),
        ("GRPOLoss", {"epsilon_high": "a"}, "epsilon_high is 'a', it must be a number"),
        ("GRPOLoss", {"beta": -1}, "beta is -1"),
        ("GRPOLoss", {"entropy_coef": float("nan")}, "entropy_coef is nan"),
        ("GRPOLoss", {"ignore_index": 0}, "ignore_index is 0, labels are ignored by -100 only"),
        ("PPOLoss", {"loss_agg_mode": "sum"}, "loss_agg_mode is 'sum', it must be 'token-mean'"),
        ("SAPOLoss", {"tau_pos": 0}, "tau_pos is 0, it must be a number above 0"),
        ("SAPOLoss", {"tau_neg": -1}, "tau_neg is -1, it must be a number above 0"),
        ("DRGRPOLoss", {"max_completion_length": 0}, "max_completion_length is 0"),
        ("GSPOLoss", {"colour": 1}, "GSPOLoss: unknown argument 'colour'"),
    ],
)
def test_an_option_that_cannot_be_is_named(name, options, text):
    with pytest.raises(InvalidError, match=text):
        twinkle.construct_class(name, twinkle.loss.Loss, twinkle.loss, **options)
