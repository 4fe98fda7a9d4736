"""Arguments and settings of a model and its adapters, over a fake engine."""

import pytest
import torch
from features import A

from twinkle import ConflictError, InvalidError, LoraConfig, NotAvailableError
from twinkle.metric import Metric
from twinkle.model import MultiLoraTransformersModel, TransformersModel


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"task": "embedding"}, "CrossEntropyLoss has require_logps, but task='embedding'"),
        ({"return_logits": 1}, "return_logits is 1, it must be True or False"),
        ({"advantages": [1.0]}, "CrossEntropyLoss: unknown argument 'advantages'"),
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
        ({"mixed_precison": "bf16"}, r"'mixed_precison'.* Did you mean mixed_precision\?"),
        ({"strategy": "hope"}, "strategy is 'hope'"),
        ({"config": object()}, "model: config is <object .* it must be a config of transformers"),
        ({"model_cls": "AutoModelForVision"}, "model_cls is 'AutoModelForVision'"),
        ({"model_cls": "AutoModelForTokenClassification"}, "causal language models only$"),
        ({"torch_dtype": torch.float32}, "torch_dtype is float32, but mixed_precision is 'bf16'"),
    ],
)
def test_constructor_arguments_are_checked(fake_core, tmp_path, kwargs, text):
    with pytest.raises((InvalidError, ImportError), match=text):
        TransformersModel(model_id=str(tmp_path), **kwargs)
    with pytest.raises(InvalidError, match="model_id is missing"):
        TransformersModel()


def test_what_hooks_into_modules_is_refused_by_name(model):
    with pytest.raises(NotAvailableError, match="register_mm_forward_hook needs multimodal"):
        model.register_mm_forward_hook()


def test_a_merge_in_memory_is_refused_with_the_remedy(model):
    with pytest.raises(NotAvailableError, match="'twinkle merge MODEL FOLDER OUTPUT' writes a"):
        model.merge_adapter(adapter_names=["default"])
    with pytest.raises(NotAvailableError, match=r"forward_only\(disable_lora=True\) is the model"):
        model.unmerge_adapter()


def test_no_split_modules_is_accepted(model):
    model.model._no_split_modules = {"Qwen3_5DecoderLayer"}
    assert model.model.config.width == 3
    model.apply_patch("NoSplitModulesPatch", module_names=["X"])
    assert model.model._no_split_modules == {"X"}


def test_an_adapter_after_training_of_all_weights_is_refused_with_the_remedy(model):
    model.forward_backward(inputs=[A])
    with pytest.raises(ConflictError, match=r"adapter 'late' cannot be added: .* to a new model"):
        model.add_adapter_to_model("late", LoraConfig(target_modules="all-linear"))
    model.forward_backward(inputs=[A])  # goes on as it was


def test_settings_made_before_the_first_adapter_are_its_own(model):
    model.set_optimizer(torch.optim.SGD, lr=0.25)
    model.set_loss("CrossEntropyLoss", reduction="mean")
    model.add_adapter_to_model("mine", LoraConfig(r=4))
    text, optimizer = model.get_train_configs(), "SGD (lr 0.25, weight_decay 0.01)"
    for part in ("adapter: mine", optimizer, "'reduction': 'mean'", "r 4", "bigram"):
        assert part in text
    assert "all weights" not in text


def test_the_weight_decay_of_the_engine_is_told_where_none_was_given(model):
    assert "AdamW (lr 1e-05, weight_decay 0.01)" in model.get_train_configs()
    model.set_optimizer("SGD", lr=0.5, weight_decay=0.25)
    assert "SGD (lr 0.5, weight_decay 0.25)" in model.get_train_configs()


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


def test_without_a_name_the_only_adapter_is_removed_or_nothing_is(adapted, monkeypatch):
    model = adapted()
    model.forward_backward(inputs=[A])
    with pytest.raises(InvalidError, match="no adapter 'nobody'; there are 'default'"):
        model.remove_adapter("nobody")
    with monkeypatch.context() as patch:

        def refuse(**kwargs):
            raise InvalidError("engine: closed")

        patch.setattr(model.engine, "delete", refuse)
        with pytest.raises(InvalidError, match="closed"):
            model.remove_adapter(None)
    model.clip_grad_and_step()
    model.remove_adapter(None)
    assert not model.engine.tenants and model._group().name == ""
    model.add_adapter_to_model("b", LoraConfig(r=2))
    model.remove_adapter()
    model.add_adapter_to_model("b", LoraConfig(r=2))
    model.add_adapter_to_model("c", LoraConfig(r=2))
    with pytest.raises(InvalidError, match="no adapter 'default'; there are 'b', 'c'"):
        model.remove_adapter(None)
    model.forward_backward(inputs=[A], adapter_name="b")


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
    model.add_adapter_to_model("a", LoraConfig())
    with pytest.raises(
        ConflictError,
        match=r"^model: there is an adapter 'a' already: choose another name, or call remove_adap",
    ):
        model.add_adapter_to_model("a", LoraConfig())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: m.set_optimizer("Lamb"), "unknown optimizer 'Lamb'"),
        (lambda m: m.set_optimizer("AdamW", speed=3), "has no option"),
        (lambda m: m.set_optimizer(dict), "it must be a name or a class of torch.optim, with its"),
        (lambda m: m.set_optimizer(torch.optim.SGD([torch.zeros(1)])),
         r"^model: optimizer_cls is an object of SGD, it must be a name or a class of torch.optim, "
         r"with its options beside it: set_optimizer\('AdamW', lr=1e-4\)$"),
        (lambda m: m.forward_backward([A]), r"by name: forward_backward\(inputs=...\)$"),
        (lambda m: m.set_lr_scheduler("Up"), "unknown lr schedule 'Up'"),
        (lambda m: m.save(interval=0), "interval is 0"),
        (lambda m: m.save(".."), "name is '..'"),
        (lambda m: m.save(colour=1), "unknown argument 'colour'"),
        (lambda m: m.clip_grad_and_step(gradient_accumulation_steps=0), "steps is 0"),
    ],
)  # fmt: skip
def test_settings_are_checked_when_they_are_made(model, call, text):
    before = model.get_train_configs()
    with pytest.raises(InvalidError, match=text):
        call(model)
    assert model.get_train_configs() == before


def test_the_multi_lora_model_wants_names(fake_core, tmp_path):
    model = MultiLoraTransformersModel(model_id=str(tmp_path), max_loras=1, max_r=4)
    assert repr(model).endswith("adapters: none)")
    with pytest.raises(InvalidError, match="the rank is 8, max_r is 4"):
        model.add_adapter_to_model("a", LoraConfig(r=8))
    model.add_adapter_to_model("a", LoraConfig(r=4))
    with pytest.raises(InvalidError, match="needs adapter_name"):
        model.forward_backward(inputs=[A])
    with pytest.raises(InvalidError, match="1 adapters exist"):
        model.add_adapter_to_model("b", LoraConfig(r=4))
    model.forward_backward(inputs=[A], adapter_name="a")


def test_the_multi_lora_model_has_no_slots_to_configure(fake_core, tmp_path):
    slots = {"lora_config": LoraConfig(r=4), "target_modules": ["q_proj"]}
    model = MultiLoraTransformersModel(model_id=str(tmp_path), **slots)
    model.add_adapter_to_model("a", LoraConfig(r=2, target_modules="all-linear"))
    assert model.get_peft_config_dict("a")["r"] == 2


def test_a_metric_of_ones_own_may_need_the_mesh_and_the_group(model):
    class Counts(Metric):
        def __init__(self, device_mesh, process_group, factor=1):
            super().__init__(device_mesh, process_group)
            self.factor = factor

    model.add_metric(Counts, is_training=True, factor=3)
    assert model.optimizer_group[""].train.metrics[-1].factor == 3
