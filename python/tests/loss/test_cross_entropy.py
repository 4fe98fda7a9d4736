"""CrossEntropyLoss called by a user, as inside a loss of their own: value and gradient of the
engine's loss, against the formula in float64."""

import pytest
import torch
from loss_batches import batch, drawn_logps

from twinkle.core import core
from twinkle.loss import CrossEntropyLoss

pytestmark = pytest.mark.usefixtures("engine_built")

SCALE = torch.tensor([0.0, 1.0, 0.5, 2.0, 1.0, 0.25]).repeat(4, 1)


def formula(logps, inputs, dft, mean):
    mask = inputs["labels"] != -100
    scale = torch.where(mask, inputs.get("loss_scale", torch.ones(4, 6)).double(), 0.0)
    each = -logps * scale * (logps.detach().exp() if dft else 1)
    count = int((scale != 0).sum())
    return each.sum() / count if mean else each.sum(), count


@pytest.mark.parametrize("dft", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_is_its_formula_with_its_gradient(dft, reduction, scaled, dtype):
    inputs = batch() | ({"loss_scale": SCALE} if scaled else {})
    logps = drawn_logps().detach().to(dtype).requires_grad_()
    out = CrossEntropyLoss(reduction=reduction, dft=dft)(inputs, {"logps": logps})
    (grad,) = torch.autograd.grad(2 * out["loss"], logps)
    wide = logps.detach().double().requires_grad_()
    expected, count = formula(wide, inputs, dft, reduction == "mean")
    (by_autograd,) = torch.autograd.grad(2 * expected, wide)
    torch.testing.assert_close(out["loss"], expected, rtol=1e-12, atol=0)
    rtol = 1e-12 if dtype is torch.float64 else 1e-6
    torch.testing.assert_close(grad.double(), by_autograd, rtol=rtol, atol=0)
    assert out["num_tokens"] == (count if reduction == "sum" else 0)


def test_cross_entropy_computes_by_the_engines_loss(monkeypatch):
    called = []
    run = core().run_loss
    monkeypatch.setattr(core(), "run_loss", lambda *a, **k: called.append(a[0]) or run(*a, **k))
    CrossEntropyLoss()(batch(), {"logps": drawn_logps()})
    assert called == ["CrossEntropyLoss"]


def test_a_batch_without_labels_has_no_loss():
    inputs = {"labels": torch.full((4, 6), -100)}
    for reduction in ("sum", "mean"):
        out = CrossEntropyLoss(reduction=reduction)(inputs, {"logps": drawn_logps()})
        assert (out["loss"].item(), out["num_tokens"]) == (0, 0)
