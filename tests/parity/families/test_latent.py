"""Latent attention: adapters on its own projections, DeepSeek-V3's FP8 files, which say what their
values in float32 say, and routers whose correction never learns.

The rest of these families: test_families.py, test_experts.py, test_schedules.py, test_bad_files.py.
"""

import json
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
from parity import models, ours
from parity.families import recipes as families
from parity.families.test_families import FIELDS, expect_scores, learn, tensors_in
from torch.nn import functional

from twinkle.errors import InvalidError

BLOCK = 20  # kv_b_proj, 112 x 24, is cut on both sides


@pytest.mark.parametrize("name", families.LATENT)
def test_an_adapter_that_learned_on_latent_attention_is_read_by_peft(name, tmp_path):
    case = families.case(name)
    modules = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    modules += ["q_proj"] if name == "deepseek_v2_lite" else ["q_a_proj", "q_b_proj"]
    fields = FIELDS | {"target_modules": modules}
    made = ours.engine(case.directory, lora_json=json.dumps(fields))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path)
    expect_scores(made, back, case)


def quantised(tensors):
    """DeepSeek's files, and their values: weights of linears as e4m3, a factor for each block."""
    files, values = {}, {}
    for name, t in tensors.items():
        if t.dim() != 2 or any(x in name for x in ("embed_tokens", "lm_head", ".gate.weight")):
            files[name] = values[name] = t
            continue
        rows, columns = (-(-size // BLOCK) for size in t.shape)
        pad = (0, columns * BLOCK - t.shape[1], 0, rows * BLOCK - t.shape[0])
        tiles = functional.pad(t, pad).view(rows, BLOCK, columns, BLOCK)
        factors = tiles.abs().amax((1, 3)) / 448.0
        small = (tiles / factors[:, None, :, None]).to(torch.float8_e4m3fn)

        def cut(x, whole=(rows * BLOCK, columns * BLOCK), size=t.shape):
            return x.reshape(whole)[: size[0], : size[1]].contiguous()

        files[name], files[name + "_scale_inv"] = cut(small), factors
        values[name] = cut(small.float() * factors[:, None, :, None])
    return files, values


CONFIG = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}


def written(folder, case, tensors, quantisation=None):
    fields = json.loads((Path(case.directory) / "config.json").read_text())
    more = {"quantization_config": quantisation} if quantisation else {}
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields | more))
    return str(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"quant_method": "fbgemm_fp8"}, "quant_method is 'fbgemm_fp8'; known: fp8; use an unqu"),
        ({"fmt": "e5m2"}, "fmt is 'e5m2'; known: e4m3; use an unquantised checkpoint"),
        ({"weight_block_size": None}, "weight_block_size is missing, it must be two numbers"),
    ],
)
def test_fp8_of_another_kind_is_refused_with_its_folder_key_value_and_remedy(
    change, text, tmp_path
):
    case = families.case("deepseek_v3")
    files, _ = quantised(tensors_in(case.directory))
    folder = written(tmp_path / "fp8", case, files, CONFIG | change)
    with pytest.raises(InvalidError) as refused:
        ours.engine(folder)
    assert folder in str(refused.value)
    assert f"quantization_config's {text}" in str(refused.value)


def test_fp8_weights_with_cut_blocks_are_their_values_in_float32_and_are_saved_as_those(tmp_path):
    case = families.case("deepseek_v3")
    files, values = quantised(tensors_in(case.directory))
    assert any(t.shape[0] % BLOCK and t.shape[1] % BLOCK for t in values.values() if t.dim() == 2)
    written(tmp_path / "fp8", case, files, CONFIG)
    written(tmp_path / "values", case, values)
    made = ours.engine(str(tmp_path / "fp8"))
    plain = ours.engine(str(tmp_path / "values"), frozen=True)
    for mine, theirs in zip(
        ours.scores(made, case.sequences)[0], ours.scores(plain, case.sequences)[0], strict=True
    ):
        assert torch.equal(mine, theirs)
    expect_scores(made, models.load_reference(str(tmp_path / "values")), case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "saved")).result()
    saved = tensors_in(tmp_path / "saved")
    assert saved.keys() == values.keys()
    assert all(torch.equal(saved[name], value) for name, value in values.items())
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    # Tensors that are not read are kept in the type of the weights.
    narrow = ours.engine(str(tmp_path / "fp8"), precision="bf16")
    narrow.save(tenant=ours.TENANT, directory=str(tmp_path / "narrow")).result()
    kept = "model.layers.2.self_attn.kv_b_proj.weight"
    assert torch.equal(tensors_in(tmp_path / "narrow")[kept], values[kept].bfloat16())


def test_fp8_weights_and_their_factors_may_lie_in_other_shards(tmp_path):
    """The hub's files are cut by size alone."""
    case = families.case("deepseek_v3")
    files, values = quantised(tensors_in(case.directory))
    written(tmp_path / "fp8", case, {}, CONFIG)
    (tmp_path / "fp8" / "model.safetensors").unlink()
    places = {}
    for number in (1, 2):
        shard = f"model-0000{number}-of-00002.safetensors"
        mine = {k: t for k, t in files.items() if k.endswith("_scale_inv") == (number == 2)}
        safetensors.torch.save_file(mine, tmp_path / "fp8" / shard)
        places |= dict.fromkeys(mine, shard)
    assert len(set(places.values())) == 2
    index = {"metadata": {}, "weight_map": places}
    (tmp_path / "fp8" / "model.safetensors.index.json").write_text(json.dumps(index))
    written(tmp_path / "values", case, values)
    made, plain = (ours.engine(str(tmp_path / x), frozen=True) for x in ("fp8", "values"))
    for mine, theirs in zip(
        ours.scores(made, case.sequences)[0], ours.scores(plain, case.sequences)[0], strict=True
    ):
        assert torch.equal(mine, theirs)


BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3"])
def test_a_load_of_weights_whose_routers_are_corrected_otherwise_is_refused(name, tmp_path):
    """The correction never learns: with another the same weights would be another model's."""
    case = families.case(name)
    made = ours.engine(case.directory)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "same")).result()
    made.load(tenant=ours.TENANT, directory=str(tmp_path / "same")).result()
    saved = tmp_path / "same" / "model.safetensors"
    files = safetensors.torch.load_file(saved)
    files[BIAS][2] += 0.5
    safetensors.torch.save_file(files, saved)
    before = ours.scores(made, case.sequences)[0]
    with pytest.raises(Exception, match=f"another model: its {BIAS} differs from the base's"):
        made.load(tenant=ours.TENANT, directory=str(tmp_path / "same")).result()
    for one, other in zip(ours.scores(made, case.sequences)[0], before, strict=True):
        assert torch.equal(one, other)
