"""Metrics, processors and what a batch may be, over a fake engine (a bigram model)."""

import numpy as np
import pytest
import torch
from features import A, B, C, Squares, reference

from twinkle import InvalidError
from twinkle.core import core
from twinkle.metric import Metric
from twinkle.processor import InputProcessor


def test_metrics_are_numbers_over_all_micro_batches_since_the_last_call(adapted):
    model = adapted(gradient_accumulation_steps=2)
    model.set_optimizer("AdamW", lr=1e-4)
    base = model.engine.base
    for batch in ([A], [B]):
        model.forward_backward(inputs=batch)
        model.clip_grad_and_step()
    metric = model.calculate_metric(is_training=True)
    loss, count = reference(base, [A, B])
    assert metric["loss"] == pytest.approx((loss / count).item())
    assert metric["num_tokens"] == count and metric["iters"] == 1 and metric["lr"] == 1e-4
    assert metric["tokens/s"] > 0 and metric["grad_norm"] > 0
    assert all(isinstance(value, (int, float)) for value in metric.values())
    assert "loss" not in model.calculate_metric(is_training=True)


def test_evaluation_inside_training_does_not_disturb_it(model):
    model.forward_backward(inputs=[A])
    for batch in ([B], [C]):
        model.forward_only(inputs=batch)
        model.calculate_loss()
    loss, count = reference(model.engine.base, [B, C])
    metrics = model.calculate_metric(is_training=False)
    assert float(metrics["loss"]) == pytest.approx((loss / count).item(), rel=1e-5)
    model.clip_grad_and_step()
    assert model.calculate_metric(is_training=True)["iters"] == 1


class Count(Metric):
    def accumulate(self, inputs, outputs, **kwargs):
        self.seen = self.__dict__.get("seen", 0) + inputs["input_ids"].numel()
        assert kwargs["gradient_accumulation_steps"] == 1

    def calculate(self):
        return {"seen": self.__dict__.get("seen", 0)}

    def reset(self):
        self.seen = 0


def test_a_metric_of_ones_own_joins_the_phases_it_is_added_to(model):
    model.add_metric(Count, is_training=True)
    model.forward_backward(inputs=[A, B])
    assert model.calculate_metric(is_training=True)["seen"] == 8
    assert "seen" not in model.calculate_metric(is_training=False)


class DropFirst(InputProcessor):
    def __call__(self, inputs):
        return inputs[1:]


def test_processors_are_options_without_arithmetic_effect_or_classes_of_ones_own(model):
    before = model.forward_only(inputs=[A, B])["logps"]
    model.set_processor("InputProcessor", padding_side="left", padding_free=True)
    assert torch.equal(model.forward_only(inputs=[A, B])["logps"], before)
    model.set_processor(DropFirst)
    assert model.forward_only(inputs=[A, B])["logps"].shape == (1, 4)
    with pytest.raises(InvalidError, match="unknown argument 'padding_colour'"):
        model.set_processor(InputProcessor, padding_colour="red")
    with pytest.raises(InvalidError, match="padding_side is 'top'"):
        model.set_processor(InputProcessor, padding_side="top")


def test_padding_that_users_bring_is_left_out_and_put_back(model):
    plain = model.forward_only(inputs=[A])["logps"][0]
    padded = {
        "input_ids": torch.tensor([0, 0, 1, 2, 3]),
        "labels": torch.tensor([-100, -100, 2, 3, -100]),
        "attention_mask": torch.tensor([0, 0, 1, 1, 1]),
        "position_ids": torch.tensor([0, 0, 0, 1, 2]),
    }
    assert torch.equal(model.forward_only(inputs=padded)["logps"][0][2:], plain)
    model.set_loss(Squares)
    model.forward_backward(inputs=padded)


def test_arrays_may_have_any_byte_order(model):
    plain = {**A, "loss_scale": [1.0, 2.0, 3.0]}
    swapped = {name: np.array(plain[name], dtype) for name, dtype in
               [("input_ids", ">i4"), ("labels", ">i8"), ("loss_scale", ">f8")]}  # fmt: skip
    for scored in (model.forward_only, model.forward_backward):
        logps = [scored(inputs=[feature])["logps"] for feature in (plain, swapped)]
        assert torch.equal(*logps)
    tensors = [core().Batch([feature]).tensors() for feature in (plain, swapped)]
    assert all(torch.equal(values, tensors[1][name]) for name, values in tensors[0].items())


def test_trajectories_are_encoded_by_the_template(model):
    rows = [{"messages": [{"role": "user", "content": "abc"}, {"role": "user", "content": "ab"}]}]
    out = model.forward_only(inputs=rows)
    assert torch.equal(
        out["logps"], model.forward_only(inputs={"input_ids": [3, 2], "labels": [2, -100]})["logps"]
    )


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("weigths", "'loss_scale', the weights of the labels"),
        ("weights", "'loss_scale', the weights of the labels"),
        ("los_scale", "'loss_scale', the weights of the labels"),
        ("input_id", "'input_ids'"),
        ("label", "'labels'"),
        ("Labels", "'labels'"),
        ("attention-mask", "'attention_mask'"),
        ("attention_masks", "'attention_mask'"),
        ("position_idx", "'position_ids'"),
    ],
)
def test_a_slip_in_a_fields_name_is_refused(model, field, meant):
    text = rf"^model: inputs\[1\]: '{field}' is not a field, did you mean {meant}\?$"
    for values in ([1, 1, 1], torch.tensor([1, 0, 1])):
        with pytest.raises(InvalidError, match=text):
            model.forward_backward(inputs=[A, {**A, field: values}])
    assert model._group().cur_step == 0


def test_a_slip_for_a_field_that_is_missing_is_refused_whatever_its_value(model):
    ids = {"input_ids": [1, 2, 3]}
    for value in ([2, 3], 5, "text"):
        with pytest.raises(InvalidError, match="'lables' is not a field, did you mean 'labels'"):
            model.forward_only(inputs={**ids, "lables": value})


def test_other_fields_travel_along(model):
    others = {
        "label": 1, "weight": 0.5, "weights": [1, 2], "solution": "x", "user_data": [["a", "1"]],
        "prompt_ids": [1, 2, 3], "output_ids": [1, 2, 3], "pixel_values": torch.zeros(3, 2), 7: [1],
        "mm_token_type_ids": [0, 0, 0], "token_type_ids": [0, 0, 0], "loss_mask": [1, 1, 1],
        "completion_mask": [1, 1, 1], "length": 3, "routed_experts": None, "messages": [],
    }  # fmt: skip
    plain = model.forward_only(inputs=[A])["logps"]
    assert torch.equal(model.forward_only(inputs=[{**A, **others}])["logps"], plain)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (None, "inputs is missing"),
        ([], "the batch is empty"),
        ([{"ids": [1]}], r"inputs\[0\] must be an InputFeature"),
        ([{"input_ids": [[1]], "labels": [[1]]}], r"input_ids of inputs\[0\] has shape \[1, 1\]"),
        ([{"input_ids": [1, 2], "labels": [1]}], r"labels of inputs\[0\] has 1 entries, input_ids"),
        ([{"input_ids": [99], "labels": [1]}], "token 99 is outside the vocabulary"),
        (
            [{"input_ids": [1, 2], "labels": [2, -100], "position_ids": [0, 0]}],
            "do not count up from 0",
        ),
        (
            [A, {**A, "attention_mask": [1, 2, 3]}],
            r"attention_mask of inputs\[1\] is 2 at position 1, it must be 0 or 1$",
        ),
        ([{**A, "attention_mask": [1, 1, -1]}], r"inputs\[0\] is -1 at position 2, it must"),
        (
            [A, {"input_ids": [1, 2], "labels": np.array([2, 2**64 - 100], np.uint64)}],
            r"labels of inputs\[1\] is 18446744073709551516 at position 1, it must be at most "
            r"9223372036854775807$",
        ),
        (
            [A, {"input_ids": [1, 2], "labels": np.array([2, 2**64 - 100], ">u8")}],
            r"labels of inputs\[1\] is 18446744073709551516 at position 1, it must be at most ",
        ),
        ([{"input_ids": [2**64 - 1]}], r"input_ids of inputs\[0\] is 18446744073709551615 at"),
        (
            [{"input_ids": [1, 2**63]}],  # fractions, to NumPy
            r"input_ids of inputs\[0\] is 9223372036854775808 at position 1, it must be at most ",
        ),
        (
            [{**A, "labels": (1, 2, -(2**63) - 1)}],
            r"is -9223372036854775809 at position 2, it must",
        ),
        (
            [{**A, "labels": [1, 10**5000, 2]}],
            r"labels of inputs\[0\] is an integer of 16610 bits at position 1, it must be at most ",
        ),
        (
            [{**A, "labels": np.ma.array([1, 2, 3], mask=[0, 1, 0])}],
            r"labels of inputs\[0\] is a masked array, it must be one without a mask: pass what ",
        ),
    ],
)
def test_bad_inputs_are_named(model, inputs, text):
    with pytest.raises(InvalidError, match=text):
        model.forward_backward(inputs=inputs)
    assert model._group().cur_step == 0
