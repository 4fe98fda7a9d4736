"""Methods of the specification that are short: initial weights, LoRA's fields, and what only other
precisions and devices need."""

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


def test_what_other_precisions_and_models_need_is_refused_by_name(model, fake_core, tmp_path):
    with pytest.raises(
        NotAvailableError, match="set_grad_scaler is for mixed_precision='fp16', which"
    ):
        model.set_grad_scaler(init_scale=2)
    for option, text in (
        (
            {"grad_scaler_config": {"init_scale": 2}},
            "grad_scaler_config is for mixed_prec",
        ),
        ({"enable_router_replay": True}, "enable_router_replay needs mixture-of-experts models"),
    ):
        with pytest.raises(NotAvailableError, match=text):
            TransformersModel(model_id=str(tmp_path), **option)
    TransformersModel(model_id=str(tmp_path), grad_scaler_config={}, enable_router_replay=False)
