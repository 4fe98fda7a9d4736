"""Checkpoints and adapters of the gated delta rule's families that cannot be meant are refused by
what is wrong in them."""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from parity import ours
from parity.families import recipes as families
from parity.families.test_families import FIELDS, tensors_in

from twinkle.errors import InvalidError, TwinkleError

DELTA = "model.language_model.layers.0.linear_attn."
EXPERT = "model.layers.0.mlp.experts."


def written(name, folder, change):
    """The family's checkpoint with `change` made to its tensors."""
    case = families.case(name)
    tensors = tensors_in(case.directory)
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    shutil.copy(Path(case.directory) / "config.json", folder)
    return str(folder)


def without(key):
    return lambda tensors: tensors.pop(key)


def with_tensor(key, *shape):
    return lambda tensors: tensors.update({key: torch.ones(*shape)})


NOT_ONE = ("config.json does not ask for", "fetch both again")
BAD = {
    "missing": ("qwen3_5", without(DELTA + "A_log"), ["FOLDER", DELTA + "A_log", "has no tensor"]),
    "surplus": (
        "qwen3_5",
        with_tensor(DELTA + "conv1d.bias", 80),
        [DELTA + "conv1d.bias", *NOT_ONE],
    ),
    "shape": (
        "qwen3_5",
        with_tensor(DELTA + "dt_bias", 5),
        ["FOLDER", DELTA + "dt_bias", "[5]", "[4]"],
    ),
    "by_head_in_flat": (
        "qwen3_5",
        with_tensor(DELTA + "in_proj_qkv.weight", 160, 64),
        ["FOLDER", DELTA + "in_proj_qkv.weight", "[160, 64]", "[80, 64]"],
    ),
    "missing_expert": (
        "qwen3_next",
        without(EXPERT + "5.up_proj.weight"),
        ["FOLDER", EXPERT + "5.up_proj.weight", "has no tensor"],
    ),
    "surplus_expert": (
        "qwen3_next",
        with_tensor(EXPERT + "8.up_proj.weight", 24, 64),
        [EXPERT + "8.up_proj.weight", *NOT_ONE],
    ),
    "experts_of_another_width": (
        "qwen3_5_moe",
        with_tensor("model.language_model.layers.0.mlp.experts.down_proj", 8, 24, 64),
        ["FOLDER", "mlp.experts.down_proj", "[8, 24, 64]", "[8, 64, 24]"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_checkpoint_whose_tensors_are_not_the_configs_is_refused(name, tmp_path):
    family, change, words = BAD[name]
    folder = written(family, tmp_path, change)
    with pytest.raises(TwinkleError) as refused:
        ours.engine(folder, frozen=True)
    for word in (w.replace("FOLDER", folder) for w in words):
        assert word in str(refused.value), refused.value


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_an_unknown_quantisation_is_refused(name, tmp_path):
    folder = Path(written(name, tmp_path, lambda tensors: None))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidError, match="quantization_config"):
        ours.engine(str(folder), frozen=True)


def test_an_adapter_whose_factors_are_turned_round_is_refused(tmp_path):
    case = families.case("qwen3_5")
    fields = {**FIELDS, "target_modules": ["in_proj_qkv"]}
    made = ours.engine(case.directory, lora_json=json.dumps(fields))
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    file = tmp_path / "adapter_model.safetensors"
    turned = {key: value.T.contiguous() for key, value in safetensors.torch.load_file(file).items()}
    safetensors.torch.save_file(turned, file)
    with pytest.raises(InvalidError) as refused:
        ours.engine(case.directory, directory=str(tmp_path))
    for word in (str(file), DELTA + "in_proj_qkv", "lora_A", "[64, 4]", "[r, in] with r = 4"):
        assert word in str(refused.value), refused.value
