"""The training loop's verbs over a fake engine (a bigram model), against plain torch."""

import json
from pathlib import Path

import pytest
import torch

from twinkle import InvalidError, LoraConfig, NotFoundError
from twinkle.loss import Loss
from twinkle.metric import Accuracy, Metric
from twinkle.model import MultiLoraTransformersModel, TransformersModel
from twinkle.processor import InputProcessor

A = {"input_ids": [1, 2, 3], "labels": [2, 3, -100]}
B = {"input_ids": [4, 5, 6, 7], "labels": [-100, 6, 7, -100]}
C = {"input_ids": [8, 9], "labels": [9, -100]}


@pytest.fixture
def model(fake_core, tmp_path):
    return TransformersModel(model_id=str(tmp_path))


@pytest.fixture
def adapted(model):
    def make(**kwargs):
        model.add_adapter_to_model("default", LoraConfig(r=2), **kwargs)
        return model

    return make


def reference(weight, features):
    """Sum of -log p over labels, with a gradient."""
    total, count = 0.0, 0
    for f in features:
        for i, y in zip(f["input_ids"], f["labels"], strict=True):
            if y != -100:
                total, count = total - torch.log_softmax(weight[i], -1)[y], count + 1
    return total, count


def test_single_device_script_without_adapter_or_optimizer_trains_every_weight(model):
    before = model.engine.base.clone()
    weight = before.clone().requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=1e-5, weight_decay=0.01)
    for batch in ([A, B], [C]):
        out = model.forward_backward(inputs=batch)
        loss, count = reference(weight, batch)
        assert out["loss"] == pytest.approx(loss.item()) and out["num_tokens"] == count
        (loss / count).backward()
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        assert model.clip_grad_and_step() == pytest.approx(float(norm))
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(model.engine.base, before)
    torch.testing.assert_close(model.engine.base, weight.detach())


def test_output_has_one_row_per_sequence_and_zeros_where_labels_are_ignored(model):
    out = model.forward_only(inputs=[A, B])
    assert out["logps"].shape == (2, 4) and out["logps"].dtype == torch.float32
    assert (out["logps"] != 0).tolist() == [[True, True, False, False], [False, True, True, False]]
    assert out["num_tokens"] == 4


def test_accumulation_steps_at_exactly_every_kth_micro_batch(adapted):
    model = adapted(gradient_accumulation_steps=3)
    model.set_optimizer("SGD", lr=0.1)
    stepped = []
    for _ in range(7):
        model.forward_backward(inputs=A)
        stepped.append(model.clip_grad_and_step() is not None)
    assert stepped == [False, False, True, False, False, True, False]


def test_accumulated_micro_batches_equal_one_batch_of_all(adapted, fake_core, tmp_path):
    model = adapted(gradient_accumulation_steps=2)
    model.set_optimizer("SGD", lr=0.5, weight_decay=0.0)
    for batch in ([A], [B, C]):
        model.forward_backward(inputs=batch)
        model.clip_grad_norm(1e9)
        model.step()
        model.zero_grad()
        model.lr_step()
    other = TransformersModel(model_id=str(tmp_path))
    other.add_adapter_to_model("x", LoraConfig(r=2))
    other.set_optimizer("SGD", lr=0.5, weight_decay=0.0)
    other.forward_backward(inputs=[A, B, C])
    other.clip_grad_and_step(max_grad_norm=0)
    torch.testing.assert_close(model.get_state_dict()["weight"], other.get_state_dict()["weight"])


def test_the_four_verbs_equal_clip_grad_and_step(fake_core, tmp_path):
    weights = []
    for together in (True, False):
        model = TransformersModel(model_id=str(tmp_path))
        model.set_lr_scheduler("LinearLR")
        for batch in ([A], [B], [C]):
            if together:
                model.forward_backward(inputs=batch)
                model.clip_grad_and_step(0.1)
            else:
                model.forward(inputs=batch)
                loss = model.calculate_loss()
                assert loss == pytest.approx(reference(model.engine.base, batch)[0].item(), 1e-5)
                model.backward()
                model.clip_grad_norm(0.1)
                model.step()
                model.zero_grad()
                model.lr_step()
        weights.append(model.engine.base)
        assert [c[1] for c in model.engine.calls if c[0] == "step"] == [1e-5, 5e-6, 2.5e-6]
    torch.testing.assert_close(*weights)


def test_reported_grad_norm_is_that_before_clipping(model):
    model.forward_backward(inputs=A)
    norm = model.clip_grad_norm(1e-3)
    model.step()
    assert norm > 1e-3
    assert model.calculate_metric(is_training=True)["grad_norm"] == norm


def test_step_and_backward_in_the_wrong_order_are_refused(model):
    with pytest.raises(InvalidError, match="step needs a backward"):
        model.step()
    with pytest.raises(InvalidError, match="backward needs forward and calculate_loss"):
        model.backward()
    with pytest.raises(InvalidError, match="calculate_loss needs a forward"):
        model.calculate_loss()
    model.forward(inputs=A)
    with pytest.raises(InvalidError, match="backward needs forward and calculate_loss"):
        model.backward()


class Squares(Loss):
    """Its gradient is known: d/dlp of lp^2 is 2 lp."""

    def __init__(self, mean=False):
        self.mean, self.shapes = mean, []

    def __call__(self, inputs, outputs, *, scale=1.0, per_sample=None):
        assert outputs["logps"].requires_grad
        assert inputs["labels"].shape == outputs["logps"].shape == inputs["input_ids"].shape
        self.shapes.append(tuple(outputs["logps"].shape))
        if per_sample is not None:
            assert len(per_sample) == outputs["logps"].shape[0]
        loss = scale * outputs["logps"].square().sum()
        count = int((inputs["labels"] != -100).sum())
        return loss / count if self.mean else {"loss": loss, "num_tokens": count}


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
    model.forward_backward(inputs=[A, B, C], micro_batch_size=2, per_sample=[1, 2, 3])
    assert loss.shapes == [(2, 4), (1, 2)]
    assert [c for c in model.engine.calls if c[0] == "forward_backward"] == [
        ("forward_backward", 3, "LinearLoss")
    ]


def test_a_function_is_a_loss(model):
    model.set_loss(lambda inputs, outputs: -outputs["logps"].sum())
    out = model.forward_backward(inputs=[A])
    assert out["loss"] == pytest.approx(reference(model.engine.base, [A])[0].item(), rel=1e-5)


class NeedsLogits(Loss):
    require_logits = True


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


def test_what_a_loss_cannot_have_is_refused_when_it_is_set(model):
    with pytest.raises(ImportError, match="NeedsLogits has require_logits"):
        model.set_loss(NeedsLogits)
    with pytest.raises(InvalidError, match="no Loss named 'NoLoss'"):
        model.set_loss("NoLoss")
    with pytest.raises(InvalidError, match="CrossEntropyLoss has no argument 'epsilon'"):
        model.set_loss("CrossEntropyLoss", epsilon=0.2)
    with pytest.raises(InvalidError, match="reduction is 'max'"):
        model.set_loss("CrossEntropyLoss", reduction="max")


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
    with pytest.raises(ImportError, match="Accuracy needs logits"):
        model.add_metric("Accuracy")
    with pytest.raises(ImportError):
        Accuracy()


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


def test_trajectories_are_encoded_by_the_template(model):
    rows = [{"messages": [{"role": "user", "content": "abc"}, {"role": "user", "content": "ab"}]}]
    out = model.forward_only(inputs=rows)
    assert torch.equal(
        out["logps"], model.forward_only(inputs={"input_ids": [3, 2], "labels": [2, -100]})["logps"]
    )


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
    ],
)
def test_bad_inputs_are_named(model, inputs, text):
    with pytest.raises(InvalidError, match=text):
        model.forward_backward(inputs=inputs)
    assert model._group().cur_step == 0


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"task": "embedding"}, "task is 'embedding'"),
        ({"return_logits": True}, "return_logits"),
        ({"advantages": [1.0]}, "CrossEntropyLoss takes no argument 'advantages'"),
        ({"micro_batch_size": 0}, "micro_batch_size is 0"),
        ({"adapter_name": "nobody"}, "there is no adapter 'nobody'; there are none"),
    ],
)
def test_arguments_that_mean_nothing_here_are_refused_by_name(model, kwargs, text):
    with pytest.raises((InvalidError, ImportError), match=text):
        model.forward_backward(inputs=[A], **kwargs)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"colour": 1}, "unknown argument 'colour'"),
        ({"mixed_precision": "fp16"}, "mixed_precision is 'fp16', this version has"),
        ({"mixed_precision": "int3"}, "mixed_precision is 'int3'"),
        ({"strategy": "hope"}, "strategy is 'hope'"),
        ({"config": object()}, "config is given"),
        ({"model_cls": "AutoModelForVision"}, "model_cls is 'AutoModelForVision'"),
        ({"torch_dtype": torch.float32}, "torch_dtype is float32, but mixed_precision is 'bf16'"),
    ],
)
def test_constructor_arguments_are_checked(fake_core, tmp_path, kwargs, text):
    with pytest.raises((InvalidError, ImportError), match=text):
        TransformersModel(model_id=str(tmp_path), **kwargs)
    with pytest.raises(InvalidError, match="model_id is missing"):
        TransformersModel()


def test_no_split_modules_is_accepted(model):
    model.model._no_split_modules = {"Qwen3_5DecoderLayer"}
    assert model.model.config.width == 3
    model.apply_patch("NoSplitModulesPatch", module_names=["X"])
    assert model.model._no_split_modules == {"X"}


def test_settings_made_before_the_first_adapter_are_its_own(model):
    model.set_optimizer(torch.optim.SGD, lr=0.25)
    model.set_loss("CrossEntropyLoss", reduction="mean")
    model.add_adapter_to_model("mine", LoraConfig(r=4))
    text = model.get_train_configs()
    for part in ("adapter: mine", "SGD (lr 0.25)", "'reduction': 'mean'", "r 4", "bigram"):
        assert part in text
    assert "all weights" not in text


def test_without_target_modules_those_that_peft_would_take_are_taken(model):
    model.add_adapter_to_model("default", LoraConfig(r=4))
    assert "target_modules ['q_proj', 'v_proj']" in model.get_train_configs()


def test_several_adapters_are_called_by_name(adapted):
    model = adapted()
    model.add_adapter_to_model("other", LoraConfig(r=2))
    model.forward_backward(inputs=[A], adapter_name="other")
    assert model._group("other").cur_step == 1 and model._group().name == "default"
    model.remove_adapter("default")
    assert model._group().name == "other"
    model.add_adapter_to_model("third", LoraConfig())
    with pytest.raises(InvalidError, match="no adapter 'default'; there are 'other', 'third'"):
        model.step()


def test_adapters_are_checked(model):
    with pytest.raises(InvalidError, match="adapter_name is ''"):
        model.add_adapter_to_model("", LoraConfig())
    with pytest.raises(InvalidError, match="gradient_accumulation_steps is 0"):
        model.add_adapter_to_model("a", LoraConfig(), gradient_accumulation_steps=0)
    with pytest.raises(InvalidError, match="the config is a int"):
        model.add_adapter_to_model("a", 3)
    assert not model.engine.tenants and model._group().name == ""
    with pytest.raises(InvalidError, match="the base model cannot be removed"):
        model.remove_adapter("")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: m.set_optimizer("Lion"), "unknown optimizer 'Lion'"),
        (lambda m: m.set_optimizer("AdamW", speed=3), "has no option"),
        (lambda m: m.set_optimizer(dict), "is not an optimizer of the engine"),
        (lambda m: m.set_lr_scheduler("Up"), "unknown schedule 'Up'"),
        (lambda m: m.save(interval=0), "interval is 0"),
        (lambda m: m.save(".."), "name is '..'"),
        (lambda m: m.save(colour=1), "unknown argument 'colour'"),
        (lambda m: m.clip_grad_and_step(gradient_accumulation_steps=0), "steps is 0"),
    ],
)
def test_settings_are_checked_when_they_are_made(model, call, text):
    before = model.get_train_configs()
    with pytest.raises(InvalidError, match=text):
        call(model)
    assert model.get_train_configs() == before


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "a/../../b", "/tmp/x", 5])
def test_names_that_leave_output_dir_are_refused(model, tmp_path, name):
    for call in (model.save, model.load):
        with pytest.raises(InvalidError, match=r"name is .*must"):
            call(name, output_dir=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists() and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"output_dir": 5}, "output_dir is 5, it must be a path"),
        ({"consumed_train_samples": 1.5}, "consumed_train_samples is 1.5, it must be an integer"),
        ({"consumed_train_samples": -1}, "consumed_train_samples is -1, .* at least 0"),
    ],
)
def test_wrong_arguments_of_save_are_named(model, arguments, text):
    with pytest.raises(InvalidError, match=text):
        model.save("x", **arguments)


def _extra(**fields):
    return json.dumps({"checkpoint_version": 1, "training": {}, "extra": json.dumps(fields)})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "trainer_state.json: it is not JSON"),
        (b"\xff\xfe\x00", "trainer_state.json: it is not JSON"),
        ("[1]", "trainer_state.json: it is no object but list"),
        ('{"extra": 5}', "extra is 5, it must be a text"),
        ('{"extra": "{"}', "extra: it is not JSON"),
        ('{"extra": "[]"}', "extra: it is no object but list"),
        (_extra(cur_step="4"), "extra: cur_step is '4', it must be an integer of at least 0"),
        (_extra(iters=-1), "extra: iters is -1, it must be an integer of at least 0"),
        (_extra(lr_step=None), "extra: lr_step is None"),
        (_extra(accumulated=[1]), r"extra: accumulated is \[1\]"),
        (_extra(gradient_accumulation_steps=0), "gradient_accumulation_steps is 0, .* at least 1"),
        (_extra(consumed_train_samples=2.5), "consumed_train_samples is 2.5"),
    ],
)
def test_a_broken_training_state_is_named_before_anything_changes(model, tmp_path, content, text):
    model.forward_backward(inputs=[A])
    directory = Path(model.save("x", output_dir=str(tmp_path), save_optimizer=True))
    content = content if isinstance(content, bytes) else content.encode()
    (directory / "trainer_state.json").write_bytes(content)
    before = (model._group().state(0), len(model.engine.calls))
    for call in (
        lambda: model.resume_from_checkpoint(directory),
        lambda: model.load(directory, load_optimizer=True),
    ):
        with pytest.raises(InvalidError, match=text):
            call()
    assert (model._group().state(0), len(model.engine.calls)) == before
    model.resume_from_checkpoint(directory, resume_only_model=True)  # it does not need the file
    with pytest.raises(InvalidError, match="checkpoint_dir is None, it must be a path"):
        model.resume_from_checkpoint(None)


def test_saving_and_resuming_keeps_the_counters(fake_core, tmp_path):
    model = TransformersModel(model_id=str(tmp_path))
    model.add_adapter_to_model("default", LoraConfig(), gradient_accumulation_steps=2)
    model.set_lr_scheduler("LinearLR")
    for _ in range(4):
        model.forward_backward(inputs=[A])
        model.clip_grad_and_step()
    directory = model.save(
        output_dir=str(tmp_path / "out"), save_optimizer=True, consumed_train_samples=4
    )
    assert directory == str(tmp_path / "out" / "checkpoint-step-4")
    assert model.save("x", output_dir=str(tmp_path), interval=3) is None
    other = TransformersModel(model_id=str(tmp_path))
    other.add_adapter_to_model("default", LoraConfig(), gradient_accumulation_steps=2)
    other.set_lr_scheduler("LinearLR")
    assert other.resume_from_checkpoint(directory) == {
        "cur_step": 4,
        "consumed_train_samples": 4,
        "gradient_accumulation_steps": 2,
    }
    group = other._group()
    assert (group.iters, group.lr_step, group.lr) == (2, 2, model._group().lr)
    torch.testing.assert_close(other.get_state_dict(), model.get_state_dict())
    with pytest.raises(NotFoundError, match="checkpoint_dir nowhere does not exist"):
        other.resume_from_checkpoint("nowhere")
    with pytest.raises(NotFoundError, match="checkpoint_dir nowhere does not exist"):
        other.upload_to_hub("nowhere", "hf://me/x")


def test_uploading_without_the_hubs_package_says_how_to_get_it(model, tmp_path, monkeypatch):
    import twinkle.plugin

    monkeypatch.setattr(twinkle.plugin, "exists", lambda name: False)
    with pytest.raises(ImportError, match="pip install 'modelscope'"):
        model.upload_to_hub(str(tmp_path), "ms://me/x")


def test_the_multi_lora_model_wants_names(fake_core, tmp_path):
    model = MultiLoraTransformersModel(model_id=str(tmp_path), max_loras=1, max_r=4)
    with pytest.raises(InvalidError, match="the rank is 8, max_r is 4"):
        model.add_adapter_to_model("a", LoraConfig(r=8))
    model.add_adapter_to_model("a", LoraConfig(r=4))
    with pytest.raises(InvalidError, match="needs adapter_name"):
        model.forward_backward(inputs=[A])
    with pytest.raises(InvalidError, match="1 adapters exist"):
        model.add_adapter_to_model("b", LoraConfig(r=4))
    model.forward_backward(inputs=[A], adapter_name="a")
