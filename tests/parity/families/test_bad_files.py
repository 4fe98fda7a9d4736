"""Checkpoints and adapters of every family that cannot be meant are refused by what is wrong in
them: the file or folder, the key or tensor, the value that it has and the one that it must have."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from parity import ours
from parity.families import recipes as families
from parity.families.test_families import ALL, FIELDS, tensors_in

from twinkle.errors import InvalidError, TwinkleError

NESTED = ("qwen3_5", "qwen3_5_moe")
NOT_ONE = ("config.json does not ask for", "fetch both again")
MODEL = "fetch it again if it is damaged, else use a model that README.md lists"


def changed(name, folder, tensors=None, fields=None, beside=None):
    """The family's checkpoint with other tensors, and with other fields of its text model or beside
    that; a tensor that is None is taken out."""
    case = families.case(name)
    files = tensors_in(case.directory) | (tensors or {})
    files = {key: t.contiguous() for key, t in files.items() if t is not None}
    safetensors.torch.save_file(files, folder / "model.safetensors")
    config = json.loads((Path(case.directory) / "config.json").read_text())
    (config["text_config"] if name in NESTED else config).update(fields or {})
    (folder / "config.json").write_text(json.dumps(config | (beside or {})))
    return str(folder)


def expect_refusal(folder, *words):
    with pytest.raises(TwinkleError) as refused:
        ours.engine(folder, frozen=True)
    for word in words:
        assert word in str(refused.value), refused.value


def some_matrix(name):
    """A tensor of the last layer, no expert's: its name and itself."""
    matrices = {
        key: t
        for key, t in tensors_in(families.case(name).directory).items()
        if ".layers.1." in key and t.dim() == 2 and ".experts." not in key
    }
    return max(matrices.items())


@pytest.mark.parametrize("name", ALL)
def test_a_key_that_would_change_the_arithmetic_is_refused(name, tmp_path):
    key = "logits_scaling" if name in families.GEMMA else "final_logit_softcapping"
    folder = changed(name, tmp_path, fields={key: 30.5})
    kind = families.model_type(name)
    expect_refusal(folder, folder, f"'{key}' is 3.05E1", f"'{kind}'", MODEL)


@pytest.mark.parametrize("name", ALL)
def test_a_missing_a_surplus_and_a_misshapen_tensor_are_refused(name, tmp_path):
    key, value = some_matrix(name)
    expect_refusal(
        changed(name, tmp_path, {key: None}), str(tmp_path), f"has no tensor {key}", NOT_ONE[1]
    )
    surplus = key.removesuffix("weight") + "lora_weight"
    expect_refusal(changed(name, tmp_path, {surplus: value}), str(tmp_path), surplus, *NOT_ONE)
    longer = torch.cat([value, value[:1]])
    shapes = [str(list(t.shape)) for t in (longer, value)]
    expect_refusal(changed(name, tmp_path, {key: longer}), str(tmp_path), key, *shapes, NOT_ONE[1])


@pytest.mark.parametrize("name", families.ROUTED)
def test_a_missing_and_a_surplus_expert_are_refused(name, tmp_path):
    experts = {
        key: t
        for key, t in tensors_in(families.case(name).directory).items()
        if ".layers.1." in key and ".experts." in key
    }
    key, value = min(experts.items())
    if value.dim() == 3:  # holds all experts
        for other in (value[:-1], torch.cat([value, value[:1]])):
            folder = changed(name, tmp_path, {key: other})
            expect_refusal(
                folder, folder, key, *(str(list(t.shape)) for t in (other, value)), NOT_ONE[1]
            )
        return
    folder = changed(name, tmp_path, {key: None})
    expect_refusal(folder, folder, f"has no tensor {key}", NOT_ONE[1])
    surplus = key.replace(".experts.0.", ".experts.8.")
    expect_refusal(changed(name, tmp_path, {surplus: value}), str(tmp_path), surplus, *NOT_ONE)


@pytest.mark.parametrize("name", families.ROUTED)
def test_more_experts_a_token_than_there_are_are_refused(name, tmp_path):
    folder = changed(name, tmp_path, fields={"num_experts_per_tok": 9})
    words = ("'num_experts_per_tok' is 9", "at most the number of experts, 8", MODEL)
    expect_refusal(folder, folder, *words)


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n_group": 3}, ["'n_group' is 3, it must divide the number of experts, 8"]),
        ({"topk_group": 5}, ["'topk_group' is 5, it must be at most n_group, 4"]),
        (
            {"topk_group": 1},
            ["'num_experts_per_tok' is 3, it must be at most 2", "topk_group, 1", "n_group, 4"],
        ),
        ({"routed_scaling_factor": 0}, ["'routed_scaling_factor' is 0, it must be above 0"]),
        ({"moe_layer_freq": 2}, ["'moe_layer_freq' is 2; known: 1"]),
    ],
)
def test_groups_of_experts_that_cannot_be_are_refused_by_the_configs_keys(
    name, fields, words, tmp_path
):
    folder = changed(name, tmp_path, fields=fields)
    expect_refusal(folder, folder, *words, MODEL)


def yarn(**fields):
    return {**families.YARN, **fields}


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0, "low_freq_factor": 4.0}
LONG = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0] * 5 + [0.0]}
LOCAL = {"sliding_attention": {"rope_type": "default", "rope_theta": 0.5}}
ROPES = {
    "yarn": ("qwen3", {"rope_parameters": yarn(factor=-1.0)}, "'factor' -1"),
    "a latent's yarn": ("deepseek_v3", {"rope_scaling": yarn(factor=-4.0)}, "'factor' -4"),
    "turns": ("qwen3", {"rope_parameters": yarn(beta_fast=0)}, "'beta_fast' 0"),
    "the original length": (
        "qwen3",
        {"rope_parameters": yarn(original_max_position_embeddings=-5)},
        "'original_max_position_embeddings' is -5",
    ),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "'factor' 0"),
    "llama3": (
        "llama",
        {"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}},
        "'high_freq_factor' 1, it must be above its 'low_freq_factor', 4",
    ),
    "theta": ("qwen3", {"rope_parameters": {"rope_theta": 0.5}}, "'rope_theta' is 0.5"),
    "longrope": ("phi3", {"rope_scaling": LONG}, "0 in 'long_factor'"),
    "gemma3's global": (
        "gemma3",
        {"rope_scaling": {"rope_type": "linear", "factor": -8.0}},
        "'factor' -8, it must be finite and above 0 (the rope of full_attention)",
    ),
    "gemma3's local": (
        "gemma3",
        {"rope_parameters": LOCAL},
        "'rope_theta' is 0.5, it must be finite and above 1 (the rope of sliding_attention)",
    ),
    "gemma3's local theta": (
        "gemma3",
        {"rope_local_base_freq": 0.5},
        "'rope_local_base_freq' is 0.5",
    ),
    "chatglm's": ("chatglm", {"rope_ratio": 0}, "'rope_ratio' is 0"),
}


@pytest.mark.parametrize("what", ROPES)
def test_wrong_values_of_a_rope_are_refused_by_the_configs_keys(what, tmp_path):
    name, fields, words = ROPES[what]
    folder = changed(name, tmp_path, fields=fields)
    expect_refusal(folder, folder, words, MODEL)


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
def test_a_layer_too_many_is_refused_unless_it_predicts_tokens(name, count, tmp_path):
    fields = {"num_hidden_layers": 1, "num_nextn_predict_layers": count}
    folder = changed(name, tmp_path, dict.fromkeys(families.PREDICTORS), fields)
    expect_refusal(folder, folder, "model.layers.1.", "num_hidden_layers is 1", NOT_ONE[1])


@pytest.mark.parametrize("name", ALL)
def test_fields_of_layers_of_their_own_are_refused(name, tmp_path):
    folder = changed(name, tmp_path, fields={"per_layer_config": {"1": {"num_attention_heads": 2}}})
    words = ("'per_layer_config' is", f"'{families.model_type(name)}'", MODEL)
    expect_refusal(folder, folder, *words)


@pytest.mark.parametrize("method", ["awq", "mxfp4"])
@pytest.mark.parametrize("name", ALL)
def test_an_unknown_quantisation_is_refused(name, method, tmp_path):
    folder = changed(name, tmp_path, beside={"quantization_config": {"quant_method": method}})
    expect_refusal(folder, folder, "quantization_config", method, "unquantised checkpoint")


TRANSPOSE = "transpose it, or save it again with peft"


def saved_adapter(case, fields, folder, **form):
    made = ours.engine(case.directory, lora_json=json.dumps(fields))
    made.save(tenant=ours.TENANT, directory=str(folder), **form).result()
    return folder / "adapter_model.safetensors"


def refusal_of_transposed(case, fields, folder, **form):
    file = saved_adapter(case, fields, folder, **form)
    turned = {key: value.T.contiguous() for key, value in safetensors.torch.load_file(file).items()}
    safetensors.torch.save_file(turned, file)
    with pytest.raises(InvalidError) as refused:
        ours.engine(case.directory, directory=str(folder))
    return str(refused.value)


@pytest.mark.parametrize("name", ALL)
def test_an_adapter_whose_factors_are_turned_round_is_refused(name, tmp_path):
    case = families.case(name)
    text = refusal_of_transposed(case, FIELDS, tmp_path, expert_format="per_expert")
    file = str(tmp_path / "adapter_model.safetensors")
    for word in (file, "lora_A", "4]", "[r, in] with r = 4", TRANSPOSE):
        assert word in text, text


@pytest.mark.parametrize("name", [name for name in families.ROUTED if name != "deepseek"])
def test_stacks_of_each_experts_factors_that_are_turned_round_are_refused(name, tmp_path):
    text = refusal_of_transposed(families.case(name), FIELDS, tmp_path)
    for word in (str(tmp_path), ".mlp.experts", "lora_A", TRANSPOSE):
        assert word in text, text


STACKS = {"r": 4, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
RANKS = {"r": 4, "target_modules": ["q_proj"], "rank_pattern": {"q_proj": 2}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [(STACKS, ["[24, 32]", "[32, 64]", "before peft 0.19"]), (RANKS, ["[64, 2]", "[2, 64]"])],
    ids=["a stack", "a rank of its own"],
)
def test_factors_whose_ranks_the_config_does_not_say_are_refused_when_turned_round(
    fields, words, tmp_path
):
    case = families.case("qwen3_moe")
    text = refusal_of_transposed(case, {"peft_type": "LORA", **fields}, tmp_path)
    for word in (str(tmp_path), *words, TRANSPOSE):
        assert word in text, text


def test_tinkers_name_of_the_head_is_told_from_another_model(tmp_path):
    case = families.case("qwen3")
    file = saved_adapter(case, FIELDS | {"target_modules": ["lm_head"]}, tmp_path)
    tensors = safetensors.torch.load_file(file)
    other = {key.replace("lm_head", "model.unembed_tokens"): t for key, t in tensors.items()}
    safetensors.torch.save_file(other, file)
    with pytest.raises(InvalidError, match=r"model\.unembed_tokens, Tinker's name of the head"):
        ours.engine(case.directory, directory=str(tmp_path))


DELTA = "model.language_model.layers.0.linear_attn."
CASES = {
    "a rule's decays": ("qwen3_5", DELTA + "A_log", None, ["FOLDER", "has no tensor"]),
    "a rule's bias": ("qwen3_5", DELTA + "dt_bias", torch.ones(5), ["FOLDER", "[5]", "[4]"]),
    "a convolution's bias": (
        "qwen3_5",
        DELTA + "conv1d.bias",
        torch.ones(80),
        ["FOLDER", *NOT_ONE],
    ),
    "projections by head": (
        "qwen3_5",
        DELTA + "in_proj_qkv.weight",
        torch.ones(160, 64),
        ["FOLDER", "[160, 64]", "[80, 64]"],
    ),
    "experts of another width": (
        "qwen3_5_moe",
        "model.language_model.layers.0.mlp.experts.down_proj",
        torch.ones(8, 24, 64),
        ["FOLDER", "[8, 24, 64]", "[8, 64, 24]"],
    ),
    "a router's correction": (
        "deepseek_v3",
        "model.layers.1.mlp.gate.e_score_correction_bias",
        None,
        ["FOLDER", "has no tensor"],
    ),
    "a latent's weight turned": (
        "deepseek_v3",
        "model.layers.0.self_attn.kv_b_proj.weight",
        torch.zeros(24, 112),
        ["FOLDER", "[24, 112]", "[112, 24]"],
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_tensors_that_few_families_have_are_refused_where_they_do_not_fit(what, tmp_path):
    name, key, value, words = CASES[what]
    folder = changed(name, tmp_path, {key: value})
    expect_refusal(folder, key, *(word.replace("FOLDER", folder) for word in words))


def test_an_adapter_with_dropout_on_kv_b_is_refused():
    case = families.case("deepseek_v2_lite")
    with pytest.raises(Exception, match=r"lora_dropout is 0\.1, but .*kv_b_proj has none"):
        ours.engine(case.directory, lora_json=json.dumps(FIELDS | {"lora_dropout": 0.1}))
