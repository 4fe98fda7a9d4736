"""Methods of the specification that are short: initial weights, LoRA's fields, and what only other
precisions and devices need."""

import json
from pathlib import Path

import pytest
import torch
from features import A

from twinkle import LoraConfig
from twinkle.errors import InvalidError, NotAvailableError
from twinkle.model import TransformersModel

CHANGE = {"input_ids": [5, 6, 7, 8, 9], "labels": [6, 7, 8, 9, -100]}


def train(model, name=None, steps=3):
    losses = []
    for _ in range(steps):
        losses.append(model.forward_backward(inputs=[CHANGE], adapter_name=name)["loss"])
        model.clip_grad_and_step(adapter_name=name)
    return losses


@pytest.mark.parametrize("kind", ["adapter", "directory", "all weights"])
def test_initial_weights_come_back_and_the_run_repeats_bit_for_bit(
    engine_built, tiny_llama_dir, tmp_path, kind
):
    model = TransformersModel(model_id=tiny_llama_dir)
    if kind != "all weights":
        model.add_adapter_to_model("a", LoraConfig(r=4, lora_dropout=0.2))
    if kind == "directory":
        model.set_optimizer("AdamW", lr=0.05)
        train(model)
        path = model.save("saved", output_dir=str(tmp_path))
        model.remove_adapter("a")
        model.add_adapter_to_model("a", path)
    model.set_optimizer("AdamW", lr=0.05)
    model.set_lr_scheduler("LinearLR", start_factor=0.5, total_iters=4)
    before = model.forward_only(inputs=[CHANGE])["logps"]
    first = train(model)
    assert not torch.equal(model.forward_only(inputs=[CHANGE])["logps"], before)
    model.forward_backward(inputs=[CHANGE])
    model.reload_initial_weights()
    assert torch.equal(model.forward_only(inputs=[CHANGE])["logps"], before)
    with pytest.raises(InvalidError, match="step needs a backward since the last step"):
        model.step()
    assert train(model) == first
    model.reload_initial_weights()
    assert train(model) == first


def test_an_untrained_model_has_its_initial_weights(model):
    model.reload_initial_weights()
    assert not model.engine.calls


def test_initial_weights_that_cannot_be_made_leave_the_adapter_as_it_is(adapted, monkeypatch):
    model = adapted()
    model.forward_backward(inputs=[A])
    grad = model.engine.tenants["adapter/default"]["grad"].clone()

    def refuse(**kwargs):
        raise InvalidError("engine: no room")

    monkeypatch.setattr(model.engine, "create", refuse)
    with pytest.raises(InvalidError, match="no room"):
        model.reload_initial_weights()
    assert torch.equal(model.engine.tenants["adapter/default"]["grad"], grad)
    model.clip_grad_and_step()


def test_the_fields_of_lora_are_pefts(adapted):
    peft = pytest.importorskip("peft")
    fields = adapted().get_peft_config_dict()
    assert peft.LoraConfig(**{k: v for k, v in fields.items() if k != "peft_type"}).r == 2
    assert fields["target_modules"] == ["q_proj", "v_proj"] and fields["peft_type"] == "LORA"


def test_the_base_model_has_no_lora_fields(model):
    assert model.get_peft_config_dict() is None


def test_the_fused_head_is_the_head(model):
    model.set_loss("CrossEntropyLoss")
    plain = model.forward_only(inputs=[A])["logps"]
    assert torch.equal(model.forward_only(inputs=[A], task="fused_lm_ce")["logps"], plain)


def test_how_several_devices_share_a_model_is_taken_and_told_or_refused(
    fake_core, tmp_path, logged
):
    make = lambda **given: TransformersModel(model_id=str(tmp_path), **given)  # noqa: E731
    make(ddp_config={}, fsdp_config={"expert_parallel": {"enabled": False}})
    del logged[:]
    make(ddp_config={"find_unused_parameters": True}, fsdp_config={"reshard_after_forward": True})
    assert logged == [
        "model: find_unused_parameters of ddp_config, reshard_after_forward of fsdp_config change "
        "nothing here: they say how several devices share a model, and it runs on one"
    ]
    with pytest.raises(InvalidError, match="fsdp_config: unknown argument 'cpu_offload'; it takes"):
        make(fsdp_config={"cpu_offload": True})
    with pytest.raises(InvalidError, match="ddp_config is 5, it must be a dict"):
        make(ddp_config=5)
    with pytest.raises(NotAvailableError, match=r"expert_parallel is .* as they share other"):
        make(fsdp_config={"expert_parallel": {"ep_size": 2}})


def test_what_only_other_engines_read_is_checked_and_told(fake_core, tmp_path, logged):
    make = lambda **given: TransformersModel(model_id=str(tmp_path), **given)  # noqa: E731
    make(device_map="auto", attn_implementation="sdpa", use_cache=False, instance_id=None)
    assert logged == ["model: attn_implementation, use_cache change nothing here: the engine has "
                      "one way to do it"]  # fmt: skip
    with pytest.raises(InvalidError, match="device_map is 'cuda:3', it must be 'auto' or 'cpu'"):
        make(device_map="cuda:3")
    with pytest.raises(InvalidError, match="use_cache is 'yes', it must be True or False"):
        make(use_cache="yes")


def test_that_all_weights_are_trained_is_said(model, adapted, logged):
    model.forward_backward(inputs=[A])
    (text,) = logged
    assert text.startswith("model: all 121 weights of ") and "add_adapter_to_model first" in text
    model.forward_backward(inputs=[A])
    assert len(logged) == 1


def test_a_model_shows_what_it_is(adapted, tmp_path):
    text = f"TransformersModel('{tmp_path}': bigram, 121 parameters, mixed_precision 'bf16', on cpu"
    assert repr(adapted()) == text + "; adapters: default)"


def test_the_groups_of_scripts_are_counted_by_name(adapted):
    model = adapted()
    group = model.optimizer_group["default"]
    assert group is model.optimizer_group["default"] and list(model.optimizer_group) == ["default"]
    model._lazy_wrap_model()
    model.set_optimizer("SGD", lr=0.5)
    model.set_lr_scheduler("LinearLR", total_iters=4)
    for _ in range(3):
        model.forward_backward(inputs=[A], gradient_accumulation_steps=2)
        model.clip_grad_and_step()
    assert (group.cur_step, group.iters, group.gradient_accumulation_steps) == (3, 1, 2)
    assert (group.optimizer, group.lr_scheduler) == ("SGD", "LinearLR") and group.grad_norm > 0
    with pytest.raises(InvalidError, match="no adapter 'x'; there are 'default': pass adapter_na"):
        model.optimizer_group["x"]
    with pytest.raises(InvalidError, match="gradient_accumulation_steps is 0"):
        model.forward_backward(inputs=[A], gradient_accumulation_steps=0)


def test_the_model_inside_names_its_layers_as_transformers_does(engine_built, tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(tiny_llama_dir, trust_remote_code=True)
    config.use_cache = False
    model = TransformersModel(
        model_id=tiny_llama_dir, model_cls="LlamaForConditionalGeneration", config=config
    )
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    wanted = {
        name: type(module).__name__
        for name, module in theirs.named_modules()
        if not name or type(module).__name__.endswith("DecoderLayer")
    }
    inside = model.model
    assert {name: type(module).__name__ for name, module in inside.named_modules()} == wanted
    assert [type(module).__name__ for module in inside.modules()] == list(wanted.values())
    assert inside.config.model_type == "llama"
    with pytest.raises(AttributeError, match=r"model.model has no 'lm_head', only config, mod"):
        inside.lm_head  # noqa: B018
    config.rope_theta = config.rms_norm_eps = 0.5
    with pytest.raises(InvalidError, match=r"config has another rms_norm_eps, .*rope_theta"):
        TransformersModel(model_id=tiny_llama_dir, config=config)


@pytest.mark.parametrize("how", ["config", "dict"])
def test_the_base_model_that_the_user_names_stays(engine_built, tiny_llama_dir, tmp_path, how):
    from twinkle.engine import Engine

    named = {"r": 2, "target_modules": "all-linear", "base_model_name_or_path": "me/other"}
    config = LoraConfig(**named) if how == "config" else named
    model = TransformersModel(model_id=tiny_llama_dir)
    model.add_adapter_to_model("a", config)
    engine = Engine(tiny_llama_dir, "no")
    paths = [model.save("x", output_dir=str(tmp_path))]
    engine.tenant("b", config).save(str(tmp_path / "y")).result()
    for path in (*paths, tmp_path / "y"):
        saved = json.loads((Path(path) / "adapter_config.json").read_text())
        assert saved["base_model_name_or_path"] == "me/other"


@pytest.mark.parametrize("start", ["fresh", "directory"])
def test_a_saved_adapter_names_its_model_as_the_user_did_and_its_targets_as_peft_does(
    engine_built, tiny_llama_dir, tmp_path, monkeypatch, start
):
    monkeypatch.setenv("TWINKLE_MODEL_ID_ALIASES", f"me/tiny={tiny_llama_dir}")
    model = TransformersModel(model_id="hf://me/tiny")
    model.add_adapter_to_model("a", LoraConfig(r=2, target_modules="all-linear"))
    path = model.save("x", output_dir=str(tmp_path))
    if start == "directory":
        model.add_adapter_to_model("b", path)
        path = model.save("y", output_dir=str(tmp_path), adapter_name="b")
    saved = json.loads((Path(path) / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == "me/tiny"
    assert sorted(saved["target_modules"]) == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip


def test_what_other_precisions_and_models_need_is_refused_by_name(model, fake_core, tmp_path):
    with pytest.raises(
        NotAvailableError, match="set_grad_scaler is for mixed_precision='fp16', which"
    ):
        model.set_grad_scaler(init_scale=2)
    with pytest.raises(NotAvailableError, match="grad_scaler_config is for mixed_prec"):
        TransformersModel(model_id=str(tmp_path), grad_scaler_config={"init_scale": 2})
    with pytest.raises(InvalidError, match="enable_router_replay is True, but the model has no"):
        TransformersModel(model_id=str(tmp_path), enable_router_replay=True)
    TransformersModel(model_id=str(tmp_path), grad_scaler_config={}, enable_router_replay=False)
