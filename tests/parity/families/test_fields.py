"""Every field that a family's class has in transformers is read here or refused: with another value
the model is refused or says something else. REVIEWED has the others, each with why; and some fields
that published files have besides, which no class reads, change nothing. Nulls, empty objects and
other names mean what they mean there."""

import inspect
import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from parity import models, ours
from parity.families import recipes as families
from parity.families.test_bad_files import changed
from parity.families.test_families import NATIVE, expect_scores

from twinkle.errors import TwinkleError

# transformers reads these two, too, as text models: their twins' files.
OWN = [*NATIVE, "qwen3_5", "qwen3_5_moe"]
WINDOWS = {"use_sliding_window": True, "sliding_window": 8}
OF_NO_LAYER = {"intermediate_size"}  # that of dense layers, of which there are none
OF_NO_GROUPS = {"n_group", "topk_group"}  # topk_method is greedy
REVIEWED = {  # fields without effect in a family's recipe, in transformers, too
    "qwen3_moe": OF_NO_LAYER,
    "qwen3_moe_windowed": OF_NO_LAYER,
    "qwen3_next": OF_NO_LAYER,
    "deepseek_v2_lite": OF_NO_GROUPS,
    "gemma3": {"attn_logit_softcapping"},  # its class does not read it
}
OF_NO_FORWARD = {
    "initializer_range",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "output_router_logits",
    "router_aux_loss_coef",  # forward_backward's own argument: test_aux_loss.py
    "num_mtp_layers",  # those that are there, kept and not read, are known by their eh_proj
    "tie_word_embeddings",  # files with a head of its own keep it: test_configs.py
}


def fields_of(kind):
    """Those that a class of transformers names besides the ones of all models."""
    mine = (base for base in kind.__mro__ if base.__module__.startswith("transformers.models."))
    return set().union(*map(inspect.get_annotations, mine))


def others(value):
    """Some that are not this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [3, 2 * value + 1]
    if isinstance(value, float):
        return [0.75]
    if isinstance(value, list):
        return [[0], [1], value[1:] + value[:1]]
    return [{"rope_type": "unusual"}] if isinstance(value, dict) else [3, True, "unusual"]


@pytest.mark.parametrize("name", OWN)
def test_every_field_of_the_class_in_transformers_is_read_or_refused(name, tmp_path):
    case = families.case(name)
    known = fields_of(families.FAMILIES[name].config)
    fields = json.loads((Path(case.twin) / "config.json").read_text())
    bases = [fields]
    if "use_sliding_window" in known:  # the rest of them needs it
        windowed = {k: v for k, v in fields.items() if k != "layer_types"} | WINDOWS
        bases += [windowed | {"max_window_layers": layers} for layers in (1, 0)]
    (tmp_path / "model.safetensors").symlink_to(Path(case.twin) / "model.safetensors")

    def said(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        made = ours.engine(str(tmp_path), frozen=True)
        return ours.scores(made, case.sequences[1:2])[0][0]

    def is_noticed(base, before, field, value):
        try:
            return not torch.equal(said(base | {field: value}), before)
        except TwinkleError:
            return True

    told = [(base, said(base)) for base in bases]
    unnoticed = {
        field
        for field in known - OF_NO_FORWARD
        if not any(
            is_noticed(base, before, field, value)
            for base, before in told
            for value in others(base.get(field))
        )
    }
    assert unnoticed == REVIEWED.get(name, set())


OF_PICTURES = {
    "depth", "image_token_id", "in_channels", "mm_tokens_per_image", "num_heads",
    "num_position_embeddings", "out_hidden_size", "patch_size", "spatial_merge_size",
    "temporal_patch_size", "text_config", "video_token_id", "vision_config",
}  # fmt: skip
UNNAMED = {"head_dim", "intermediate_size"}  # read here, too: of all families, of some with experts


@pytest.mark.parametrize("name", OWN)
def test_no_class_reads_a_field_that_it_does_not_name(name):
    """Such a field is not among those of the test before."""
    kind = families.FAMILIES[name].config
    model = transformers.AutoModelForCausalLM._model_mapping[kind]
    text = Path(inspect.getsourcefile(model)).read_text()
    read = set(re.findall(r"config\.([a-z_0-9]+)", text))
    read |= set(re.findall(r"getattr\((?:self\.)?config, *['\"]([a-z_0-9]+)", text))
    everyone = set(dir(transformers.PreTrainedConfig()))
    assert read - fields_of(kind) - set(kind.attribute_map) - everyone <= OF_PICTURES | UNNAMED


PUBLISHED = {
    "Qwen3-Coder": ("qwen3_moe", {"use_qk_norm": True, "qkv_bias": False}),
    "Qwen3.5": ("qwen3_5", {"output_gate_type": "swish"}),
    "Qwen3.5 with experts": ("qwen3_5_moe", {"output_gate_type": "silu"}),
}


@pytest.mark.parametrize("what", PUBLISHED)
def test_fields_of_published_files_that_no_class_reads_change_nothing(what, tmp_path):
    name, fields = PUBLISHED[what]
    case = families.case(name)
    folder = changed(name, tmp_path, fields=fields)
    expect_scores(ours.engine(folder, frozen=True), case.reference, case)
    if name in NATIVE:
        expect_scores(ours.engine(folder, frozen=True), models.load_reference(folder), case)


@pytest.mark.parametrize(
    ("name", "field", "value", "known"),
    [
        ("qwen3", "use_qk_norm", False, "true"),
        ("qwen3_moe", "use_qk_norm", False, "true"),
        ("qwen3_5", "output_gate_type", "sigmoid", '"silu", "swish"'),
        ("qwen3_5_moe", "output_gate_type", "sigmoid", '"silu", "swish"'),
    ],
)
def test_with_other_values_they_are_refused(name, field, value, known, tmp_path):
    folder = changed(name, tmp_path, fields={field: value})
    with pytest.raises(TwinkleError) as refused:
        ours.engine(folder, frozen=True)
    for word in (folder, f"'{field}' is {json.dumps(value)}; known: {known}"):
        assert word in str(refused.value)


ABSENT = object()
TURNED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 777.0}
UNTRUNCATED = {**families.YARN, "truncate": None}
SPELLINGS = {
    "an empty rope_scaling": ("qwen3", {"rope_scaling": {}}),
    "an empty rope_scaling beside yarn": (
        "qwen3",
        {"rope_scaling": {}, "rope_parameters": families.YARN},
    ),
    "an empty rope_scaling of gpt_oss": (
        "gpt_oss",
        {"rope_scaling": {}, "rope_parameters": ABSENT},
    ),
    "empty rope_parameters of gpt_oss": ("gpt_oss", {"rope_parameters": {}}),
    "mixtral's theta in rope_scaling": (
        "mixtral",
        {"rope_scaling": TURNED, "rope_parameters": ABSENT},
    ),
    "mixtral without a theta": (
        "mixtral",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": ABSENT},
    ),
    "no interleaving": ("deepseek_v3", {"rope_interleave": None}),
    "no sum of 1": ("deepseek_v3", {"norm_topk_prob": None}),
    "llama's truncate": ("llama", {"rope_parameters": UNTRUNCATED}),
    "deepseek_v3's truncate": (
        "deepseek_v3",
        {"rope_parameters": {**UNTRUNCATED, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "gpt_oss' truncate": ("gpt_oss", {"rope_parameters": {**UNTRUNCATED, "rope_theta": 1.5e5}}),
    "swish": ("qwen3", {"hidden_act": "swish"}),
    "swish of experts": ("qwen3_moe", {"hidden_act": "swish"}),
    "no layer of its own": ("qwen3", {"per_layer_config": {}}),
}


@pytest.mark.parametrize("what", SPELLINGS)
def test_nulls_and_other_names_mean_what_they_mean_in_transformers(what, tmp_path):
    name, changes = SPELLINGS[what]
    case = families.case(name)
    config = json.loads((Path(case.twin) / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not ABSENT}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(Path(case.twin) / "model.safetensors")
    theirs = models.load_reference(str(tmp_path))
    expect_scores(ours.engine(str(tmp_path), frozen=True), theirs, case)


def test_one_expert_a_token_keeps_its_weight_in_the_first_deepseek(tmp_path):
    """Its own code, which transformers does not have, divides where there is more than one."""
    case = families.case("deepseek")

    def said(number, norm):
        fields = {"num_experts_per_tok": number, "norm_topk_prob": norm}
        made = ours.engine(changed("deepseek", tmp_path, fields=fields), frozen=True)
        return ours.scores(made, case.sequences[1:2])[0][0]

    assert torch.equal(said(1, True), said(1, False))
    assert not torch.allclose(said(2, True), said(2, False), rtol=0, atol=1e-3)
