"""Families with the gated delta rule: adapters under both of transformers' names, saves that both
of its classes load, and decays that stay float32.

Scores, gradients, text, saves in their own layout, tenants: test_families.py, test_schedules.py.
"""

import json
import shutil
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
import transformers
from parity import models, ours, reference
from parity.families import recipes as families
from parity.families.test_experts import PARAMETERS, by_stack, every_linear
from parity.families.test_families import FIELDS, expect_scores, learn, tensors_in
from parity.test_gradients import adapted, check

NESTED = ["qwen3_5", "qwen3_5_moe"]
ALL = [*NESTED, "qwen3_next"]
VISION = {  # the tensor that recipes.UNREAD has of it; transformers draws the others
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
    "patch_size": 4,
}


def with_pictures(directory):
    """transformers' class with pictures, of a folder in the hub's layout."""
    config = transformers.AutoConfig.from_pretrained(directory)
    for name, value in VISION.items():
        setattr(config.vision_config, name, value)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        directory, config=config, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def equal_scores(one, other, case):
    for mine, theirs in zip(
        *(ours.scores(made, case.sequences)[0] for made in (one, other)), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", NESTED)
def test_a_full_save_is_read_by_both_of_transformers_classes(name, tmp_path):
    case = families.case(name)
    published = tmp_path / "published"  # bfloat16 by its words, and with what reads pictures
    shutil.copytree(case.directory, published)
    config = json.loads((published / "config.json").read_text())
    config["text_config"]["dtype"] = "bfloat16"
    (published / "config.json").write_text(json.dumps(config))
    (published / "preprocessor_config.json").write_text("{}")
    tmp_path = tmp_path / "saved"
    made = ours.engine(str(published))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    assert (tmp_path / "preprocessor_config.json").read_text() == "{}"
    saved = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (saved.dtype, saved.text_config.dtype) == (torch.float32, torch.float32)
    expect_scores(made, models.load_reference(str(tmp_path)), case)
    whole = with_pictures(tmp_path)
    assert type(whole).__name__.endswith("ForConditionalGeneration")
    expect_scores(made, whole, case)


@pytest.mark.parametrize("name", NESTED)
def test_a_text_model_that_transformers_saved_is_read_and_saved_as_one(name, tmp_path):
    case = families.case(name)
    made = ours.engine(case.twin)
    expect_scores(made, case.reference, case)
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    saved = tensors_in(tmp_path)
    assert saved.keys() == tensors_in(case.twin).keys()
    assert "model.layers.0.linear_attn.A_log" in saved
    expect_scores(made, models.load_reference(str(tmp_path)), case)


def lora_config(case):
    if case.name == "qwen3_5":
        return peft.LoraConfig(**FIELDS)
    modules = every_linear(case.reference)
    return peft.LoraConfig(r=4, lora_alpha=6, target_modules=modules, target_parameters=PARAMETERS)


@pytest.mark.parametrize("name", NESTED)
def test_an_adapter_of_the_text_class_is_read_and_saved_under_the_checkpoints_names(name, tmp_path):
    """With its gradients."""
    case = families.case(name)
    model = adapted(case, tmp_path / "theirs", lora_config(case))
    nested = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    expect_scores(nested, model, case)
    flat = ours.engine(case.twin, directory=str(tmp_path / "theirs"))
    equal_scores(nested, flat, case)
    expected = reference.adapter_gradients(model, case.sequences)
    grads = by_stack(ours.gradients(flat, case.sequences)[0])
    assert grads.keys() == expected.keys()
    check(grads, expected)
    for key, value in by_stack(ours.gradients(nested, case.sequences)[0]).items():
        assert torch.equal(value, grads.pop(key.replace("model.language_model.", "model."))), key
    assert not grads
    learn(nested, case)
    nested.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    keys = safetensors.torch.load_file(tmp_path / "mine" / "adapter_model.safetensors")
    assert all(key.startswith("base_model.model.model.language_model.layers.") for key in keys)
    base = with_pictures(case.directory)
    expect_scores(nested, peft.PeftModel.from_pretrained(base, tmp_path / "mine"), case)
    flat.load(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    equal_scores(nested, flat, case)


def merged(base, adapter):
    return peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()


@pytest.mark.parametrize("name", NESTED)
def test_peft_merges_an_adapter_into_the_class_with_pictures_alone(name, tmp_path):
    """As docs/training.md says."""
    case = families.case(name)
    made = ours.engine(case.directory, lora_json=json.dumps(peft_fields()))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    whole = merged(with_pictures(case.directory), tmp_path / "mine")
    expect_scores(made, whole, case)
    whole.save_pretrained(tmp_path / "merged")
    expect_scores(ours.engine(str(tmp_path / "merged"), frozen=True), whole, case)
    with pytest.warns(UserWarning, match="Found missing adapter keys"):
        text = merged(models.load_reference(case.directory), tmp_path / "mine")
    expect_scores(ours.engine(case.directory, frozen=True), text, case)


def peft_fields():
    """Names of an adapter of every linear."""
    return {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": "all-linear"}


@pytest.mark.parametrize("name", ALL)
def test_decays_stay_float32_while_a_bfloat16_model_learns(name, tmp_path):
    case = families.case(name)
    made = ours.engine(case.directory, precision="bf16")
    before, _ = ours.scores(made, case.sequences)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "untouched")).result()
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "saved")).result()
    given, untouched, saved = (
        tensors_in(folder)
        for folder in (case.directory, tmp_path / "untouched", tmp_path / "saved")
    )
    decays = [key for key in saved if key.endswith((".A_log", ".dt_bias"))]
    assert len(decays) == 2
    for key in decays:
        assert saved[key].dtype == torch.float32, key
        assert torch.equal(untouched[key], given[key])
        assert not torch.equal(saved[key], given[key])
        assert not torch.equal(saved[key], saved[key].bfloat16().float())
    assert saved[decays[0].replace("A_log", "norm.weight")].dtype == torch.bfloat16
    again = ours.engine(str(tmp_path / "saved"), precision="bf16", frozen=True)
    equal_scores(again, made, case)
    made.delete(tenant=ours.TENANT).result()  # the base comes back
    made.create(tenant=ours.TENANT, frozen=True).result()
    for mine, first in zip(ours.scores(made, case.sequences)[0], before, strict=True):
        assert torch.equal(mine, first)


@pytest.mark.parametrize(("outer", "inner"), [(False, True), (True, False), (None, True)])
def test_the_outer_flag_of_a_tied_head_counts(outer, inner, tmp_path):
    case = families.case("qwen3_5")
    tensors = tensors_in(case.directory)
    config = json.loads((Path(case.directory) / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = inner
    config.pop("tie_word_embeddings")
    if outer is not None:
        config["tie_word_embeddings"] = outer
    (tmp_path / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    if outer is False:
        with pytest.raises(Exception, match=r"has no tensor lm_head\.weight"):
            ours.engine(str(tmp_path), frozen=True)
        return
    equal_scores(
        ours.engine(str(tmp_path), frozen=True), ours.engine(case.directory, frozen=True), case
    )
