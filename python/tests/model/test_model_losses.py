"""Losses written in Python, over a fake engine (a bigram model), against autograd."""

import pytest
import torch
from features import A, B, C, Squares, reference

from twinkle import InvalidError
from twinkle.loss import Loss
from twinkle.remote.rows import rows_from


@pytest.mark.parametrize("name", ["grpo", "GRPO", "GRPOLoss"])
def test_a_loss_is_found_by_its_short_name(model, name):
    model.set_loss(name)
    assert type(model._group().loss).__name__ == "GRPOLoss"
    with pytest.raises(InvalidError, match=r"there is no Loss named 'grop'; there are .*GRPOLoss"):
        model.set_loss("grop")


@pytest.mark.parametrize("mean", [False, True])
def test_a_loss_written_in_python_trains_as_autograd_says(model, mean):
    model.set_loss(Squares, mean=mean)
    model.set_optimizer("SGD", lr=0.1, weight_decay=0.0)
    weight = model.engine.base.clone().requires_grad_()
    out = model.forward_backward(inputs=[A, B], scale=3.0)
    logps = [
        torch.log_softmax(weight[i], -1)[y]
        for f in (A, B)
        for i, y in zip(f["input_ids"], f["labels"], strict=True)
        if y != -100
    ]
    loss = 3.0 * sum(p**2 for p in logps)
    assert out["loss"] == pytest.approx(loss.item() / (4 if mean else 1), rel=1e-5)
    (loss / 4).backward()
    model.clip_grad_and_step(max_grad_norm=0)
    expected = weight.detach() - 0.1 * weight.grad
    torch.testing.assert_close(model.engine.base, expected, rtol=1e-5, atol=1e-6)
    reported = model.calculate_metric(is_training=True)["loss"]
    assert reported == pytest.approx(loss.item() / 4, rel=1e-5)


def test_micro_batches_of_a_python_loss_see_their_part_of_per_sample_arguments(model):
    loss = Squares()
    model.set_loss(loss)
    scale = torch.tensor(1.0)  # it has no length to cut
    model.forward_backward(inputs=[A, B, C], micro_batch_size=2, per_sample=[1, 2, 3], scale=scale)
    assert loss.shapes == [(2, 4), (1, 2)]
    assert [c for c in model.engine.calls if c[0] == "forward_backward"] == [
        ("forward_backward", 3, "LinearLoss")
    ]


def test_micro_batches_cut_what_row_arguments_names_and_nothing_else(model):
    seen = []

    def weighted(inputs, outputs, coef=(), own=()):
        seen.append((coef, own))
        return -outputs["logps"].sum()

    weighted.row_arguments = ("own",)
    model.set_loss(weighted)
    model.forward_backward(inputs=[A, B, C], micro_batch_size=2, coef=[1, 2, 3], own=[4, 5, 6])
    assert seen == [([1, 2, 3], [4, 5]), ([1, 2, 3], [6])]


def test_micro_batches_cut_what_the_driver_has_cut_and_nothing_else(model):
    seen = []

    def weighted(inputs, outputs, coef=(), own=(), other=()):
        seen.append((coef, own, other))
        return -outputs["logps"].sum()

    model.set_loss(weighted)
    given = {"coef": [1, 2, 3], "own": {"of": [4, 5, 6], "all": [7, 8, 9]}, "other": [1, 2, 3]}
    with rows_from(0, {"coef": False, "own": {"of": True, "all": False}}):
        model.forward_backward(inputs=[A, B, C], micro_batch_size=2, **given)
    assert [coef for coef, _, _ in seen] == [[1, 2, 3]] * 2
    assert [own["of"] for _, own, _ in seen] == [[4, 5], [6]]
    assert [own["all"] for _, own, _ in seen] == [[7, 8, 9]] * 2
    assert [other for _, _, other in seen] == [[1, 2], [3]], "of which nobody has told"


def test_a_function_is_a_loss(model):
    model.set_loss(lambda inputs, outputs: -outputs["logps"].sum())
    out = model.forward_backward(inputs=[A])
    assert out["loss"] == pytest.approx(reference(model.engine.base, [A])[0].item(), rel=1e-5)


class NeedsValues(Loss):
    require_values = True


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda inputs, outputs: 3.0, "must return a scalar tensor"),
        (lambda inputs, outputs: outputs["logps"], "must return a scalar tensor"),
        (lambda inputs, outputs: {"num_tokens": 1}, "returned a dict without 'loss'"),
        (lambda inputs, outputs: outputs["logps"].sum() * float("nan"), "is nan, nothing was acc"),
        (lambda inputs, outputs: torch.zeros(()), "does not depend on outputs"),
        (
            lambda inputs, outputs: {"loss": outputs["logps"].sum(), "num_tokens": -1},
            "num_tokens of FunctionLoss is -1",
        ),
        (
            lambda inputs, outputs: (outputs["logps"] * 0).abs().sqrt().sum(),
            "the gradient of FunctionLoss is not finite",
        ),
    ],
)
def test_a_bad_python_loss_is_named_and_accumulates_nothing(model, loss, text):
    model.set_loss(loss)
    with pytest.raises(InvalidError, match=text):
        model.forward_backward(inputs=[A])
    assert not any(call[0] == "forward_backward" for call in model.engine.calls)
    assert model._group().accumulated == 0


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("logits", InvalidError, "require_logits = True, or, in evaluation, .*return_logits=True"),
        ("values", InvalidError, "train a TransformersValueModel"),
        ("entropies", InvalidError, "require_entropy = True"),
        ("embeddings", InvalidError, "task='embedding'"),
        ("colour", KeyError, "colour"),
    ],
)
def test_an_output_that_a_loss_reads_and_that_is_not_there_is_named(model, name, error, text):
    if error is not KeyError:
        there = r"but there is only outputs\['logps'\]"
        text = rf"^loss: FunctionLoss reads outputs\['{name}'\], {there}: .*{text}"
    model.set_loss(lambda inputs, outputs: outputs[name].sum())
    with pytest.raises(error, match=text):
        model.forward_backward(inputs=[A])
    for forward in (model.forward, model.forward_only):
        forward(inputs=[A])
        with pytest.raises(error, match=text):
            model.calculate_loss()
    assert model._group().accumulated == 0


@pytest.mark.parametrize("name", ["loss", "num_tokens"])
def test_in_training_a_loss_sees_the_same_outputs_by_either_way(model, name):
    model.set_loss(lambda inputs, outputs: outputs["logps"].sum() * (2 if name in outputs else 1))
    model.forward(inputs=[A])
    assert model.calculate_loss() == model.forward_backward(inputs=[A])["loss"]


def test_what_a_loss_cannot_have_is_refused_when_it_is_set(model):
    text = r"NeedsValues has require_values.*TransformersValueModel.*'entropies'"
    with pytest.raises(InvalidError, match=text):
        model.set_loss(NeedsValues)
    with pytest.raises(InvalidError, match="no Loss named 'NoLoss'"):
        model.set_loss("NoLoss")
    with pytest.raises(InvalidError, match="CrossEntropyLoss: unknown argument 'epsilon'"):
        model.set_loss("CrossEntropyLoss", epsilon=0.2)
    with pytest.raises(InvalidError, match="reduction is 'max'"):
        model.set_loss("CrossEntropyLoss", reduction="max")
