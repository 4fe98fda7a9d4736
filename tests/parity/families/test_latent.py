"""Latent attention: sampled tokens have the bits of training's scores, however a prompt comes in,
and DeepSeek-V3's FP8 files say what their values in float32 say.

Scores, gradients, adapters, saves, tenants of these families: test_families.py, test_experts.py.
"""

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from parity import models, ours
from parity.families import recipes as families
from parity.families.test_families import FIELDS, expect_scores, tensors_in
from torch.nn import functional

from twinkle.engine import Engine

BLOCK = 16


def sampled(case, budget):
    """Of an adapter that has learned: tokens, their log-probabilities, and training's scores of
    them. Two prompts are one, so that the second finds its pages, and each has two samples."""
    engine = Engine(case.directory, mixed_precision="no", device=ours.DEVICE, token_budget=budget)
    tenant = engine.tenant("me", FIELDS, seed=3)
    rows = [{k: s[k] for k in ("input_ids", "labels")} for s in case.sequences]
    for _ in range(2):
        tenant.forward_backward(rows)
        tenant.step("AdamW", lr=0.01).result()
    prompts = [*case.prompts, case.prompts[-1]]
    sampling = {"max_tokens": 40, "temperature": 1.0, "seed": 5, "logprobs": 1, "num_samples": 2}
    answers = tenant.sample([{"input_ids": p} for p in prompts], sampling).result()
    out = []
    for prompt, answer in zip(prompts, answers, strict=True):
        for sequence in answer.sequences:
            tokens = list(sequence.tokens)
            row = {"input_ids": prompt + tokens[:-1]}
            row["labels"] = [-100] * (len(prompt) - 1) + tokens
            scores = tenant.forward([row]).result()["logps"][0]
            mine = torch.as_tensor(sequence.logprobs)
            out.append((tokens, mine, torch.as_tensor(scores)[len(prompt) - 1 :]))
    return out


@pytest.mark.parametrize("name", families.LATENT)
def test_sampled_tokens_have_the_bits_of_trainings_scores_however_their_prompts_come_in(name):
    case = families.case(name)
    whole = sampled(case, 512)
    for _, mine, scores in whole:
        assert torch.equal(mine, scores)
    for budget in (48, 97):
        for one, other in zip(sampled(case, budget), whole, strict=True):
            assert one[0] == other[0], budget
            assert torch.equal(one[1], other[1])


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


def test_fp8_weights_with_cut_blocks_are_their_values_in_float32_and_are_saved_as_those(tmp_path):
    case = families.case("deepseek_v3")
    files, values = quantised(tensors_in(case.directory))
    assert any(t.shape[0] % BLOCK and t.shape[1] % BLOCK for t in values.values() if t.dim() == 2)
    fields = json.loads((Path(case.directory) / "config.json").read_text())
    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    config |= {"weight_block_size": [BLOCK, BLOCK]}
    for folder, tensors, more in (
        ("fp8", files, {"quantization_config": config}),
        ("values", values, {}),
    ):
        (tmp_path / folder).mkdir()
        safetensors.torch.save_file(tensors, tmp_path / folder / "model.safetensors")
        (tmp_path / folder / "config.json").write_text(json.dumps(fields | more))
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


def test_an_unknown_quantisation_is_refused_by_name(tmp_path):
    case = families.case("deepseek_v3")
    shutil.copy(Path(case.directory) / "model.safetensors", tmp_path / "model.safetensors")
    fields = json.loads((Path(case.directory) / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(Exception, match='quant_method "awq"'):
        ours.engine(str(tmp_path))


def test_an_adapter_with_dropout_on_kv_b_is_refused():
    case = families.case("deepseek_v2_lite")
    with pytest.raises(Exception, match=r"lora_dropout is 0\.1, but .*kv_b_proj has none"):
        ours.engine(case.directory, lora_json=json.dumps(FIELDS | {"lora_dropout": 0.1}))
