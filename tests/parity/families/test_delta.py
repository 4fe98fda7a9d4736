"""Families with the gated delta rule: adapters under both of transformers' names, saves that both
of its classes load, decays that stay float32, and sampling in any order of work.

Scores, gradients, text, saves in their own layout, tenants: test_families.py.
"""

import json
import shutil
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
import transformers
from parity import models, ours
from parity.families import recipes as families
from parity.families.test_experts import PARAMETERS
from parity.families.test_families import FIELDS, expect_scores, learn, tensors_in
from parity.test_gradients import adapted

from twinkle.engine import Engine

NESTED = ["qwen3_5", "qwen3_5_moe"]
ALL = [*NESTED, "qwen3_next"]
VISION = {  # of the tensor that recipes.UNREAD has of it; transformers draws the others
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


def lora_config(name):
    if name == "qwen3_5":
        return peft.LoraConfig(**FIELDS)
    return peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "in_proj_qkv"], target_parameters=PARAMETERS
    )


@pytest.mark.parametrize("name", NESTED)
def test_an_adapter_of_the_text_class_is_read_and_saved_under_the_checkpoints_names(name, tmp_path):
    case = families.case(name)
    model = adapted(case, tmp_path / "theirs", lora_config(name))
    nested = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    expect_scores(nested, model, case)
    flat = ours.engine(case.twin, directory=str(tmp_path / "theirs"))
    equal_scores(nested, flat, case)
    learn(nested, case)
    nested.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    keys = safetensors.torch.load_file(tmp_path / "mine" / "adapter_model.safetensors")
    assert all(key.startswith("base_model.model.model.language_model.layers.") for key in keys)
    base = with_pictures(case.directory)
    expect_scores(nested, peft.PeftModel.from_pretrained(base, tmp_path / "mine"), case)
    flat.load(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    equal_scores(nested, flat, case)


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


def texts(tenant, prompts, **sampling):
    params = {"max_tokens": 40, "temperature": 1.0, "seed": 5, "logprobs": 1, **sampling}
    out = tenant.sample([{"input_ids": p} for p in prompts], params).result()
    return [(s.tokens, s.logprobs) for response in out for s in response.sequences]


@pytest.mark.parametrize("name", ALL)
def test_cuts_forks_snapshots_and_preemption_change_not_a_bit_of_sampled_text(name):
    """Prompts that begin alike, each sampled twice, in engines that have room for all or for few,
    and one after the other in an engine that keeps nothing."""
    case = families.case(name)
    start = [3 + i % 150 for i in range(70)]
    prompts = [[*start, *p] for p in case.prompts] + case.prompts

    def tenant(**options):
        made = Engine(case.directory, mixed_precision="no", device=ours.DEVICE, **options)
        return made, made.tenant("t", FIELDS, seed=1)

    _, alone = tenant(prefix_cache=False)
    want = [s for p in prompts for s in texts(alone, [p], num_samples=2)]
    for options in ({}, {"prefill_tokens": 1}, {"prefill_tokens": 33}):
        _, roomy = tenant(**options)
        assert texts(roomy, prompts, num_samples=2) == want
        assert texts(roomy, prompts, num_samples=2) == want  # from what was kept
    _, tight = tenant(kv_tokens=64 * 5, max_sequences=3)
    assert texts(tight, prompts, num_samples=2) == want


@pytest.mark.parametrize("name", ALL)
def test_a_tenant_that_was_parked_goes_on_with_the_same_bits(name, tmp_path):
    case = families.case(name)
    rows = [{k: s[k] for k in ("input_ids", "labels")} for s in case.sequences]

    def train(**options):
        made = Engine(case.directory, mixed_precision="no", device=ours.DEVICE, **options)
        tenants = [made.tenant(f"t{i}", FIELDS, seed=i) for i in range(2)]
        for _ in range(3):
            for tenant in tenants:
                tenant.forward_backward(rows).result()
                tenant.step("AdamW", lr=0.01).result()
        scores = [tenant.forward(rows).result()["logps"] for tenant in tenants]
        sampled = [texts(tenant, case.prompts) for tenant in tenants]
        return scores, sampled, made.stats()["num_returns"]

    scores, sampled, returns = train()
    again, text, came_back = train(resident_bytes=1, park_directory=str(tmp_path))
    assert returns == 0 and came_back >= 4
    assert text == sampled
    for mine, theirs in zip(again, scores, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
