"""Losses through logits against torch's functions and loops."""

import numpy as np
import pytest
import torch
from loss_batches import batch, gradient

from twinkle import InvalidError
from twinkle.loss import GKDLoss, MSELoss

V = 11
MASK = batch()["labels"] != -100


def logits(seed, width=V):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 6, width, generator=generator).mul_(2)


STUDENT, TEACHER = logits(1).requires_grad_(), logits(2)


def kl(p, q):
    """KL(P || Q) of two lists of probabilities."""
    return float((p * (p / q).log()).sum())


def divergence(beta, s, t, temperature=1.0):
    """The loss of one label's logits, by its definition in probabilities."""
    s, t = (torch.softmax(x.detach().double() / temperature, -1) for x in (s, t))
    if beta in (0, 1):
        return kl(s, t) if beta else kl(t, s)
    m = beta * t + (1 - beta) * s
    return beta * kl(t, m) + (1 - beta) * kl(s, m)


def mean(of):
    rows = [of(s, t) for s, t in zip(STUDENT[MASK], TEACHER[MASK], strict=True)]
    return sum(rows) / len(rows)


@pytest.mark.parametrize("beta", [0, 0.3, 0.5, 1])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_size", [1, 4, 512])
def test_gkd_is_its_formula(beta, temperature, chunk_size):
    loss = GKDLoss(beta=beta, temperature=temperature, chunk_size=chunk_size)
    out = loss(batch(), {"logits": STUDENT}, teacher_logits=TEACHER)
    expected = mean(lambda s, t: divergence(beta, s, t, temperature))
    assert out["loss"].item() == pytest.approx(expected, rel=1e-6)
    assert out["num_tokens"] == 0


@pytest.mark.parametrize("beta", [0, 0.3, 1])
def test_gkds_gradient_is_that_of_finite_differences(beta):
    loss = GKDLoss(beta=beta, temperature=0.7, chunk_size=4)
    start = STUDENT.detach().double().requires_grad_()
    grad = gradient(loss(batch(), {"logits": start}, teacher_logits=TEACHER)["loss"], start)
    assert not grad[~MASK].any()
    for i, t, v in ((0, 1, 3), (1, 5, 0), (2, 1, 10), (3, 3, 7)):
        step = torch.zeros_like(grad)
        step[i, t, v] = 1e-6
        up, down = (
            loss(batch(), {"logits": (start + s).detach()}, teacher_logits=TEACHER)["loss"]
            for s in (step, -step)
        )
        assert float(grad[i, t, v]) == pytest.approx(float(up - down) / 2e-6, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("form", ["logits", "tensors", "lists", "of labels"])
def test_a_teacher_of_its_likeliest_tokens_is_renormalised(form):
    top = TEACHER.log_softmax(-1).topk(3)

    def of(s, t):
        values, indices = t.log_softmax(-1).topk(3)
        return divergence(0.5, s[indices], values, 0.8)

    if form == "logits":
        given = {"teacher_logits": TEACHER, "topk": 3}
    else:
        given = {"teacher_topk_logprobs": top.values, "teacher_topk_indices": top.indices}
    if form == "lists":
        given = {name: value.tolist() for name, value in given.items()}
    if form == "of labels":
        given = {
            name: [row[m].tolist() for row, m in zip(value, MASK, strict=True)]
            for name, value in given.items()
        }
    out = GKDLoss(temperature=0.8)(batch(), {"logits": STUDENT}, **given)["loss"]
    assert out.item() == pytest.approx(mean(of), rel=1e-6)


def test_a_teacher_that_is_the_student_teaches_nothing():
    for beta in (0, 0.5, 1):
        out = GKDLoss(beta=beta)(batch(), {"logits": STUDENT}, teacher_logits=STUDENT)["loss"]
        assert out.item() == pytest.approx(0, abs=1e-12)
        assert gradient(out, STUDENT).abs().max() < 1e-7


def shares(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def masked_divergence(beta, s, t):
    """In float64 NumPy, of one label: 0 log 0 is 0."""
    s, t = shares(s.astype(np.float64)), shares(t.astype(np.float64))
    m = beta * t + (1 - beta) * s
    some = t > 0
    if beta == 0:
        return float((t[some] * np.log(t[some] / s[some])).sum())
    of_t = (t[some] * np.log(t[some] / m[some])).sum()
    return float(beta * of_t + (1 - beta) * (s * np.log(s / m)).sum())


@pytest.mark.parametrize("beta", [0, 0.3, 0.5])
@pytest.mark.parametrize("form", ["logits", "topk of logits", "topk"])
def test_tokens_that_the_teacher_never_takes_have_probability_0(beta, form):
    teacher, start = logits(2), logits(1).double().requires_grad_()
    teacher[..., ::2] = -torch.inf
    teacher[1, :, 2:] = -torch.inf  # one token is left, and fewer than K
    rows = [x[MASK].detach().numpy() for x in (start, teacher)]
    given = {"teacher_logits": teacher}
    if form != "logits":
        top = teacher.log_softmax(-1).topk(4)
        order = top.indices[MASK].numpy()
        rows = [np.take_along_axis(x, order, -1) for x in rows]
        given["topk"] = 4
    if form == "topk":
        given = {"teacher_topk_logprobs": top.values, "teacher_topk_indices": top.indices}
    out = GKDLoss(beta=beta, chunk_size=4)(batch(), {"logits": start}, **given)["loss"]
    each = [masked_divergence(beta, s, t) for s, t in zip(*rows, strict=True)]
    assert out.item() == pytest.approx(np.mean(each), rel=1e-6)
    grad = gradient(out, start)
    assert torch.isfinite(grad).all() and grad.any()
    for i, t, v in ((0, 1, 3), (1, 5, 1), (2, 1, 10), (3, 3, 7)):
        step = torch.zeros_like(grad)
        step[i, t, v] = 1e-6
        up, down = (
            GKDLoss(beta=beta)(batch(), {"logits": (start + s).detach()}, **given)["loss"]
            for s in (step, -step)
        )
        assert float(grad[i, t, v]) == pytest.approx(float(up - down) / 2e-6, rel=1e-4, abs=1e-8)


def left_out(count):
    """A teacher that leaves out its first `count` tokens."""
    out = logits(2)
    out[..., :count] = -torch.inf
    return out


TOP = {
    "teacher_topk_logprobs": torch.zeros(4, 6, 2),
    "teacher_topk_indices": torch.zeros(4, 6, 2).long(),
}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "^loss: GKDLoss needs a teacher: pass teacher_logits=teacher.forward_only"),
        ({"teacher_topk_logprobs": TOP["teacher_topk_logprobs"]}, "GKDLoss needs a teacher"),
        ({"teacher_logits": TEACHER, **TOP}, "are given, pass one teacher"),
        ({**TOP, "topk": 2}, "topk goes with teacher_logits, leave it out"),
        ({"teacher_logits": TEACHER, "topk": 12}, "topk is 12, it must be an integer of at least"),
        ({"teacher_logits": logits(2, 13)}, "teacher_logits have 13 tokens, the student's 11"),
        ({"teacher_logits": TEACHER[:, :4]}, r"teacher_logits of inputs\[0\] has 4 entries"),
        ({"teacher_logits": TEACHER[:3]}, "teacher_logits has 3 entries for 4 sequences"),
        ({"teacher_logits": TEACHER[..., 0]}, r"has shape \[6\], it must be \[entries, K\]"),
        (
            {"teacher_logits": TEACHER / 0},
            "an entry that is nan or inf, all must be finite, or -inf",
        ),
        ({"teacher_logits": -TEACHER.sqrt()}, "an entry that is nan or inf"),
        (
            {"teacher_logits": left_out(V)},
            r"of inputs\[0\] has a label of which every entry is -inf",
        ),
        (
            {**TOP, "teacher_topk_logprobs": torch.full((4, 6, 2), -torch.inf)},
            "teacher_topk_logprobs of inputs.* has a label of which every entry is -inf",
        ),
        (
            {**TOP, "teacher_topk_indices": torch.zeros(4, 6, 3)},
            "teacher_topk_logprobs have 2 entries a label, teacher_topk_indices 3",
        ),
        (
            {**TOP, "teacher_topk_indices": torch.full((4, 6, 2), 11)},
            r"teacher_topk_indices has \[11\], it must be a token of the student's 11",
        ),
        ({**TOP, "teacher_topk_indices": [[[1, 2], [3]]] * 4}, "teacher_topk_indices of inputs"),
    ],
)
def test_a_teacher_that_is_missing_or_of_another_form_is_named(given, text):
    with pytest.raises(InvalidError, match=text):
        GKDLoss()(batch(), {"logits": STUDENT}, **given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"beta": 1.1}, "beta is 1.1, it must be a number of at least 0, at most 1"),
        ({"beta": -0.1}, "beta is -0.1"),
        ({"temperature": 0}, "temperature is 0, it must be a number above 0"),
        ({"chunk_size": 0}, "chunk_size is 0, it must be an integer of at least 1"),
        ({"ignore_index": 1}, "ignore_index is 1"),
    ],
)
def test_an_option_that_cannot_be_is_named(options, text):
    with pytest.raises(InvalidError, match=text):
        GKDLoss(**options)


def test_mse_is_torchs_at_the_labels():
    out = MSELoss()(batch(), {"logits": STUDENT}, targets=TEACHER)
    expected = torch.nn.functional.mse_loss(STUDENT[MASK], TEACHER[MASK])
    assert out["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
    assert out["num_tokens"] == 0
    torch.testing.assert_close(gradient(out["loss"], STUDENT), gradient(expected, STUDENT))
    whole = MSELoss()({"labels": TEACHER}, {"logits": STUDENT})["loss"]
    expected = torch.nn.functional.mse_loss(STUDENT, TEACHER)
    assert whole.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "given"), [(GKDLoss(), {"teacher_logits": TEACHER}), (MSELoss(), {"targets": TEACHER})]
)
def test_a_batch_without_labels_is_named_and_no_zero(loss, given):
    inputs = {"labels": torch.full((4, 6), -100)}
    with pytest.raises(InvalidError, match=f"{type(loss).__name__} has no label to learn from"):
        loss(inputs, {"logits": STUDENT}, **given)


def test_mse_with_tokens_for_labels_is_named():
    with pytest.raises(InvalidError, match=r"shape \[4, 6, 11\] with labels of shape \[4, 6\]"):
        MSELoss()(batch(), {"logits": STUDENT})
    with pytest.raises(InvalidError, match="targets have 5 tokens, the logits 11"):
        MSELoss()(batch(), {"logits": STUDENT}, targets=logits(1, 5))


def test_what_is_infinite_or_no_target_is_named():
    with pytest.raises(InvalidError, match=r"beta is 1, KL\(S \|\| T\), which is infinite where"):
        GKDLoss(beta=1)(batch(), {"logits": STUDENT}, teacher_logits=left_out(2))
    with pytest.raises(InvalidError, match=r"targets of .* an entry that is nan or inf"):
        MSELoss()(batch(), {"logits": STUDENT}, targets=left_out(2))
