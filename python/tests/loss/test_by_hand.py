"""Losses that a script calls itself, as those of ModelScope's Twinkle are called: on logits, or on
one sequence without its batch, against torch's own functions."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from twinkle import InvalidError
from twinkle.loss import (
    ChunkedCrossEntropyLoss,
    CrossEntropyLoss,
    DPOLoss,
    GKDLoss,
    GRPOLoss,
    KTOLoss,
    LigerFusedLinearCrossEntropyLoss,
    MSELoss,
    OPSDLoss,
    PPOValueLoss,
    SimPOLoss,
)

pytestmark = pytest.mark.usefixtures("engine_built")

LABELS = torch.tensor([3, -100, 5, 0, 9])
BATCH = torch.tensor([[1, 2, -100], [3, 4, 5], [6, -100, -100], [7, 8, 9]])


def drawn(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def logps_of(logits, labels):
    chosen = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return chosen * (labels != -100)


@pytest.mark.parametrize("loss", [CrossEntropyLoss(), LigerFusedLinearCrossEntropyLoss()])
def test_cross_entropy_of_one_sequences_logits_is_torchs(loss):
    logits = drawn(5, 10).requires_grad_()
    out = loss({"labels": LABELS}, {"logits": logits})
    expected = cross_entropy(logits, LABELS, reduction="sum")
    torch.testing.assert_close(out["loss"], expected.double(), rtol=1e-6, atol=0)
    assert out["num_tokens"].item() == 4
    (ours,) = torch.autograd.grad(out["loss"], logits)
    (theirs,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(ours, theirs)


def test_cross_entropy_of_logps_in_one_dimension_is_that_of_their_logits():
    logits = drawn(5, 10)
    out = ChunkedCrossEntropyLoss(2)({"labels": LABELS}, {"logps": logps_of(logits, LABELS)})
    expected = cross_entropy(logits, LABELS)
    assert out["loss"].item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (DPOLoss(reference_free=True), {}),
        (SimPOLoss(), {}),
        (GRPOLoss(entropy_coef=0.1), {"advantages": [1.0, -1.0, 0.5, 2.0]}),
        (KTOLoss(), {"desirable": [True, False, None, None], "ref_logps": [-2.0] * 4}),
        (OPSDLoss(), {"teacher_logps": [-2.0] * 4}),
    ],
)
def test_a_loss_of_logits_is_that_of_their_log_probabilities(loss, given):
    logits = drawn(4, 3, 10)
    all_logps = logits.log_softmax(-1)
    entropies = -(all_logps.exp() * all_logps).sum(-1)
    outputs = {"logps": logps_of(logits, BATCH), "entropies": entropies}
    expected = loss({"labels": BATCH}, outputs, **given)["loss"].item()
    out = loss({"labels": BATCH}, {"logits": logits}, **given)["loss"].item()
    assert out == pytest.approx(expected, rel=1e-6)


def test_a_k_of_the_class_is_that_of_every_call():
    student, teacher = drawn(4, 3, 10), drawn(4, 3, 10, seed=4)
    inputs, outputs = {"labels": BATCH}, {"logits": student}
    expected = GKDLoss()(inputs, outputs, teacher_logits=teacher, topk=3)["loss"]
    assert GKDLoss(topk=3)(inputs, outputs, teacher_logits=teacher)["loss"] == expected
    one = GKDLoss(topk=3)({"labels": BATCH[1]}, {"logits": student[1]}, teacher_logits=teacher[1:2])
    alone = GKDLoss(topk=3)(
        {"labels": BATCH[1:2]}, {"logits": student[1:2]}, teacher_logits=teacher[1:2]
    )
    assert one["loss"] == alone["loss"]


@pytest.mark.parametrize(
    ("loss", "labels", "outputs", "text"),
    [
        (CrossEntropyLoss(), LABELS, {"logps": drawn(4)}, r"logps of CrossEnt.* shape \[4\], but"),
        (CrossEntropyLoss(), LABELS, {"logits": drawn(1, 5, 9)}, r"logits of .* \[1, 5, 9\], but"),
        (DPOLoss(), BATCH, {"logps": drawn(4, 4)}, r"logps of DPOLoss has the shape \[4, 4\]"),
        (GRPOLoss(), BATCH, {"logps": drawn(12)}, r"logps of GRPOLoss has the shape \[12\]"),
        (GKDLoss(), BATCH, {"logits": drawn(4, 3)}, r"logits of GKDLoss has the shape \[4, 3\]"),
        (PPOValueLoss(), BATCH, {"values": drawn(4)}, r"values of PPOValueLoss has the shape"),
        (MSELoss(), BATCH, {"logits": drawn(4, 3, 2)}, "MSELoss compares logits of shape"),
    ],
)
def test_another_shape_is_named(loss, labels, outputs, text):
    given = {"returns": [0.0] * 4, "old_values": [0.0] * 4} if "values" in outputs else {}
    with pytest.raises(InvalidError, match=text):
        loss({"labels": labels}, outputs, **given)


def test_inputs_without_labels_are_named():
    with pytest.raises(InvalidError, match=r"GRPOLoss needs inputs\['labels'\]"):
        GRPOLoss()({}, {"logps": drawn(4, 3)}, advantages=[1.0] * 4)
