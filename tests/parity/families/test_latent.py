"""Latent attention: sampled tokens have the bits of training's scores, however a prompt comes in,
DeepSeek-V3's FP8 files say what their values in float32 say, and files that don't fit are refused.

Scores, gradients, adapters, saves, tenants of these families: test_families.py, test_experts.py.
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

from twinkle.engine import Engine

BLOCK = 20  # kv_b_proj, 112 x 24, is cut on both sides


def sampled(case, max_tokens=40, **options):
    """Of an adapter that has learned: tokens, their log-probabilities, and training's scores of
    them. Two prompts are one, so that the second finds its pages, and each has two samples."""
    engine = Engine(case.directory, mixed_precision="no", device=ours.DEVICE, **options)
    tenant = engine.tenant("me", FIELDS, seed=3)
    rows = [{k: s[k] for k in ("input_ids", "labels")} for s in case.sequences]
    for _ in range(2):
        tenant.forward_backward(rows)
        tenant.step("AdamW", lr=0.01).result()
    prompts = [*case.prompts, case.prompts[-1]]
    sampling = {"max_tokens": max_tokens, "temperature": 1.0, "seed": 5, "logprobs": 1}
    sampling["num_samples"] = 2
    answers = tenant.sample([{"input_ids": p} for p in prompts], sampling).result()
    out = []
    for prompt, answer in zip(prompts, answers, strict=True):
        for sequence in answer.sequences:
            tokens = list(sequence.tokens)
            row = {"input_ids": prompt + tokens[:-1]}
            row["labels"] = [-100] * (len(prompt) - 1) + tokens
            scores = tenant.forward([row]).result()["logps"][0]
            mine = torch.as_tensor([entry[0][1] for entry in sequence.logprobs])
            assert [entry[0][0] for entry in sequence.logprobs] == tokens
            out.append((tokens, mine, torch.as_tensor(scores)[len(prompt) - 1 :]))
    return out


def expect_equal(one, other, what):
    for mine, theirs in zip(one, other, strict=True):
        assert mine[0] == theirs[0], what
        assert torch.equal(mine[1], theirs[1]), what


WAYS = [  # to the same text: prompts in pieces; sequences that give their pages back; none shared
    {"prefill_tokens": 48, "token_budget": 48},
    {"prefill_tokens": 5, "kv_tokens": 256},
    {"prefill_tokens": 97, "prefix_cache": False},
]


@pytest.mark.parametrize("name", families.LATENT)
def test_sampled_tokens_have_the_bits_of_trainings_scores_however_they_come_about(name):
    case = families.case(name)
    whole = sampled(case)
    for _, mine, scores in whole:
        assert torch.equal(mine, scores)
    for way in WAYS:
        expect_equal(sampled(case, **way), whole, way)


def test_a_prompt_may_be_cut_at_every_place():
    case = families.case("deepseek_v3")
    whole = sampled(case, 2)
    for place in range(1, 70):  # of the longest prompt, of 70 tokens
        expect_equal(sampled(case, 2, prefill_tokens=place), whole, place)


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
    # What is not read is kept in the type of the weights.
    narrow = ours.engine(str(tmp_path / "fp8"), precision="bf16")
    narrow.save(tenant=ours.TENANT, directory=str(tmp_path / "narrow")).result()
    kept = "model.layers.2.self_attn.kv_b_proj.weight"
    assert torch.equal(tensors_in(tmp_path / "narrow")[kept], values[kept].bfloat16())


def changed(case, folder, tensors=None, **fields):
    """The model's files with other tensors or fields; None takes one out."""
    folder.mkdir()
    files = tensors_in(case.directory) | (tensors or {})
    files = {name: t for name, t in files.items() if t is not None}
    safetensors.torch.save_file(files, folder / "model.safetensors")
    config = json.loads((Path(case.directory) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return str(folder)


@pytest.mark.parametrize("method", ["awq", "mxfp4"])
def test_an_unknown_quantisation_is_refused_by_name(method, tmp_path):
    case = families.case("deepseek_v3")
    folder = changed(case, tmp_path / "x", quantization_config={"quant_method": method})
    with pytest.raises(Exception, match=f'quant_method "{method}"'):
        ours.engine(folder)


KV_B = "model.layers.0.self_attn.kv_b_proj.weight"
EXPERT = "model.layers.1.mlp.experts.{}.up_proj.weight"
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({EXPERT.format(3): None}, f"has no tensor {EXPERT.format(3)}"),
        ({EXPERT.format(8): torch.zeros(24, 64)}, EXPERT.format(8)),
        ({BIAS: None}, f"has no tensor {BIAS}"),
        ({KV_B: torch.zeros(24, 112)}, rf"{KV_B} of .*x has shape \[24, 112\].*\[112, 24\]"),
    ],
)
def test_a_missing_a_surplus_and_a_misshapen_tensor_are_named(tensors, text, tmp_path):
    folder = changed(families.case("deepseek_v3"), tmp_path / "x", tensors)
    with pytest.raises(Exception, match=text):
        ours.engine(folder)


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


def test_an_adapter_of_a_wrong_orientation_is_refused_with_its_shapes(tmp_path):
    case = families.case("deepseek_v2_lite")
    made = ours.engine(
        case.directory, lora_json=json.dumps(FIELDS | {"target_modules": ["kv_b_proj"]})
    )
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "x")).result()
    file = tmp_path / "x" / "adapter_model.safetensors"
    turned = {name: t.T.contiguous() for name, t in safetensors.torch.load_file(file).items()}
    safetensors.torch.save_file(turned, file)
    with pytest.raises(Exception, match=r"kv_b_proj.*shape"):
        ours.engine(case.directory, directory=str(tmp_path / "x"))


def test_an_adapter_with_dropout_on_kv_b_is_refused():
    case = families.case("deepseek_v2_lite")
    with pytest.raises(Exception, match=r"lora_dropout is 0\.1, but .*kv_b_proj has none"):
        ours.engine(case.directory, lora_json=json.dumps(FIELDS | {"lora_dropout": 0.1}))
