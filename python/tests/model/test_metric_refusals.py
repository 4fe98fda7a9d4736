"""A metric that refuses a batch does so before anything is counted, on the compiled engine."""

import numpy as np
import pytest
import torch
from features import drawn

from twinkle import InvalidError
from twinkle.loss import Loss, PPOValueLoss
from twinkle.metric import Metric
from twinkle.model import TransformersModel, TransformersValueModel

pytestmark = pytest.mark.usefixtures("engine_built")

BATCH = drawn([5, 9, 7, 11])
HALF = [{**f, "loss_scale": np.full(len(f["labels"]), 0.5)} for f in BATCH]
MARKED = [{**f, "labels": [1 - i % 2]} for i, f in enumerate(BATCH)]
UNMARKED = [{**f, "labels": [0]} for f in BATCH]


class OfAny(Loss):
    """Metrics of the given outputs, whatever else is given."""

    require_logps = False

    def __call__(self, inputs, outputs, **kwargs):
        name = "embeddings" if "embeddings" in outputs else "logps"
        return -outputs[name].double().square().sum()


class OfValues(PPOValueLoss):
    """Reads neither old values nor returns, as a loss of one's own may."""

    def __call__(self, inputs, outputs, **kwargs):
        return (outputs["values"].double() - 1).square().sum()


RETURNS = [0.5, -1.0, 2.0, 1.0]
VALUED = {"old_values": [0.0] * 4, "returns": RETURNS}
OLD = {"old_logps": [-1.0] * 4, "advantages": [1.0, -1.0, 0.5, 0.0]}
EMBEDDING = {"task": "embedding"}
CASES = {  # metric: loss, refused (inputs, kwargs), accepted (inputs, kwargs), text
    "DPOMetric": (None, (BATCH[:3], {}), (BATCH, {}), "DPOMetric needs pairs"),
    "GRPOMetric": (None, (HALF, {}), (BATCH, {}), "GRPOMetric weighs no labels, .* is 0.5"),
    "CISPOMetric": (OfAny, (BATCH, {**OLD, "old_logps": [-1.0] * 3}), (BATCH, OLD),
                    "old_logps has 3 entries for 4 sequences"),
    "GSPOMetric": (OfAny, (BATCH, {**OLD, "advantages": [[1.0] * 2] * 4}), (BATCH, OLD),
                   r"advantages of inputs.* has 2 entries"),
    "EmbeddingMetric": (OfAny, (UNMARKED, EMBEDDING), (MARKED, EMBEDDING), "has the label 0"),
    "PPOValueMetric": (OfValues, (BATCH, {**VALUED, "returns": [1.0] * 3}), (BATCH, VALUED),
                       "returns has 3 entries for 4 sequences"),
}  # fmt: skip


@pytest.fixture
def make(tiny_llama_dir):
    def make(metric, loss):
        cls = TransformersValueModel if metric == "PPOValueMetric" else TransformersModel
        model = cls(model_id=tiny_llama_dir, mixed_precision="no")
        if loss is not None:
            model.set_loss(loss)
        model.set_optimizer("SGD", lr=0.1)
        model.add_metric(metric)
        return model

    return make


def state(model):
    group = model._group()
    return (
        group.accumulated,
        group.cur_step,
        group.iters,
        group.gradient_accumulation_steps,
        model.calculate_metric(is_training=False),
        {k: v for k, v in model.calculate_metric(is_training=True).items() if "lr" in k},
    )


def timeless(metrics):
    return {k: v for k, v in metrics.items() if k not in ("total time elapse", "speed", "tokens/s")}


@pytest.mark.parametrize("metric", CASES)
def test_a_batch_that_a_metric_refuses_counts_nothing(make, metric):
    loss, (bad, bad_kwargs), (good, kwargs), text = CASES[metric]
    model, fresh = make(metric, loss), make(metric, loss)
    before = state(model)
    with pytest.raises(InvalidError, match=text):
        model.forward_backward(inputs=bad, **bad_kwargs)
    task = {k: v for k, v in bad_kwargs.items() if k == "task"}
    given = {k: v for k, v in bad_kwargs.items() if k != "task"}
    for forward in (model.forward_only, model.forward):
        forward(inputs=bad, **task)
        with pytest.raises(InvalidError, match=text):
            model.calculate_loss(**given)
    with pytest.raises(InvalidError, match="backward needs forward and calculate_loss"):
        model.backward(gradient_accumulation_steps=7)
    assert state(model) == before
    with pytest.raises(InvalidError, match="step needs a backward"):
        model.step()
    outs = [m.forward_backward(inputs=good, **kwargs)["loss"] for m in (model, fresh)]
    norms = [m.clip_grad_and_step() for m in (model, fresh)]
    seen = [timeless(m.calculate_metric(is_training=True)) for m in (model, fresh)]
    assert outs[0] == outs[1] and norms[0] == norms[1] > 0
    assert seen[0] == seen[1] and model._group().cur_step == 1


def test_a_metric_that_comes_between_loss_and_gradient_refuses_then(make):
    model = make("GRPOMetric", None)
    model.forward(inputs=BATCH[:3])
    model.calculate_loss()
    model.add_metric("DPOMetric")
    with pytest.raises(InvalidError, match="DPOMetric needs pairs"):
        model.backward(gradient_accumulation_steps=7)
    assert model._group().accumulated == 0 == model._group().cur_step
    assert model._group().gradient_accumulation_steps == 1


def test_a_metric_is_checked_only_where_it_is_given_what_it_reads(make):
    """Batches that would be refused if it read them."""
    model = make("DPOMetric", OfAny)
    model.add_metric("EmbeddingMetric")
    model.forward_backward(inputs=MARKED[:2], **EMBEDDING)
    model = make("EmbeddingMetric", None)
    model.forward_backward(inputs=BATCH[:3])
    assert "pos_sim" not in model.calculate_metric(is_training=True)


class OnlyPairs(Metric):
    """One's own, which asks for no particular output."""

    def check(self, inputs, *, strict=True, **kwargs):
        if strict and len(inputs["labels"]) % 2:
            raise InvalidError("metric: odd")

    def accumulate(self, inputs, outputs, **kwargs):
        assert torch.is_tensor(inputs["labels"])

    def calculate(self):
        return {}

    def reset(self):
        pass


def test_a_check_of_ones_own_sees_inputs_and_what_the_loss_is_called_with(make):
    model = make(OnlyPairs, OfAny)
    with pytest.raises(InvalidError, match="metric: odd"):
        model.forward_backward(inputs=BATCH[:3])
    assert model._group().accumulated == 0
    model.forward_backward(inputs=BATCH[:3], strict=False)
    assert model._group().accumulated == 1
