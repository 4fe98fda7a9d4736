"""Adapters of routed experts as older versions of peft wrote them: files that are made byte by byte
here, by no writer of ours or of peft, score as the model with their products merged."""

import json
import random
import struct

import pytest
import torch
import transformers
from parity import models, ours
from parity.families import recipes as families
from parity.families.layouts import SIZES
from parity.families.recipes import MOE, ROPE
from parity.families.test_families import expect_scores

E, D, R, SCALE = 8, 64, 2, 4.0
STEM = "base_model.model.model.layers.{}.mlp.experts"
# The fields that 0.17.1 writes of a LoraConfig; 0.18.0 writes four fields more.
FIELDS = {
    "alpha_pattern": {},
    "auto_mapping": None,
    "base_model_name_or_path": "base",
    "bias": "none",
    "corda_config": None,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.0,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "qalora_group_size": 16,
    "r": R,
    "rank_pattern": {},
    "revision": None,
    "target_modules": [],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
}
OF_0_18 = {
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "ensure_weight_tying": False,
    "peft_version": "0.18.0",
}


def write(folder, tensors, **fields):
    """safetensors: the header's length, the header, the numbers."""
    folder.mkdir()
    header, numbers = {}, b""
    for name, value in tensors.items():
        piece = struct.pack(f"<{value.numel()}f", *value.flatten().tolist())
        offsets = [len(numbers), len(numbers) + len(piece)]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": offsets}
        numbers += piece
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + numbers
    )
    (folder / "adapter_config.json").write_text(json.dumps(FIELDS | fields))


@pytest.fixture
def base(request, tmp_path):
    """A qwen3_moe with experts of this width, its folder and some sequences."""
    config = transformers.Qwen3MoeConfig(
        **SIZES | MOE | {"moe_intermediate_size": request.param, "num_experts": E},
        rope_parameters=ROPE,
        norm_topk_prob=True,
    )
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    models.randomise(model)
    model.save_pretrained(tmp_path / "base")
    rng = random.Random(5)
    case = models.Case(0, "old", str(tmp_path / "base"), [], [], 4096)
    case.sequences = [models.draw_sequence(rng, n, config.vocab_size) for n in (17, 40)]
    return case, models.load_reference(case.directory)


def experts_of(model):
    return [layer.mlp.experts for layer in model.model.layers]


def old_stack(weight):
    """Factors of a stack [E, out, in], and what peft before 0.19 added to it: it took the stack for
    one of [E, in, out], and made A [E r, out] and B [in, r E]."""
    _, rows, columns = weight.shape
    a, b = torch.randn(E * R, rows) * 0.2, torch.randn(columns, R * E) * 0.2
    added = torch.einsum("ore,eri->eio", b.view(columns, R, E), a.view(E, R, rows))
    return a, b, SCALE * added


@torch.no_grad()
def scores_are_those_of(case, model, folder):
    expect_scores(ours.engine(case.directory, directory=str(folder)), model.eval(), case)


@pytest.mark.parametrize("base", [24], indirect=True)
def test_stacks_that_0_17_wrote_are_read_without_a_version(base, tmp_path):
    case, model = base
    tensors = {}
    for i, experts in enumerate(experts_of(model)):
        for inner, weight in ((".base_layer", experts.gate_up_proj), ("", experts.down_proj)):
            a, b, added = old_stack(weight)
            tensors[STEM.format(i) + inner + ".lora_A.weight"] = a
            tensors[STEM.format(i) + inner + ".lora_B.weight"] = b
            weight.data += added
    assert tensors[STEM.format(0) + ".base_layer.lora_A.weight"].shape == (E * R, 48)
    parameters = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    write(tmp_path / "old", tensors, target_parameters=parameters)
    scores_are_those_of(case, model, tmp_path / "old")


@pytest.mark.parametrize("base", [D // 2], indirect=True)
def test_of_square_stacks_the_version_says_that_0_18_wrote_them(base, tmp_path):
    case, model = base
    tensors = {}
    for i, experts in enumerate(experts_of(model)):
        assert experts.gate_up_proj.shape == (E, D, D)
        a, b, added = old_stack(experts.gate_up_proj)
        tensors |= {STEM.format(i) + ".lora_A.weight": a, STEM.format(i) + ".lora_B.weight": b}
        experts.gate_up_proj.data += added
    fields = OF_0_18 | {"target_parameters": ["mlp.experts.gate_up_proj"]}
    write(tmp_path / "old", tensors, **fields)
    scores_are_those_of(case, model, tmp_path / "old")


def factors_of_each(model, stem, names):
    """By keys, of each expert's gate, up and down; their products are added to the model."""
    tensors = {}
    for i, experts in enumerate(experts_of(model)):
        width = experts.down_proj.shape[2]
        for e in range(E):
            gate_up = experts.gate_up_proj.data[e]
            weights = (gate_up[:width], gate_up[width:], experts.down_proj.data[e])
            for name, weight in zip(names, weights, strict=True):
                a, b = torch.randn(R, weight.shape[1]) * 0.2, torch.randn(weight.shape[0], R) * 0.2
                key = f"{stem.format(i)}.{e}.{name}"
                tensors |= {key + ".lora_A.weight": a, key + ".lora_B.weight": b}
                weight.add_(SCALE * b @ a)
    return tensors


@pytest.mark.parametrize("base", [24], indirect=True)
def test_factors_of_each_experts_linears_are_read(base, tmp_path):
    """As peft wrote them while transformers had a linear for each."""
    case, model = base
    names = ["gate_proj", "up_proj", "down_proj"]
    write(tmp_path / "old", factors_of_each(model, STEM, names), target_modules=names)
    scores_are_those_of(case, model, tmp_path / "old")


def test_factors_of_mixtrals_experts_are_read_by_the_names_that_they_had(tmp_path):
    case, names = families.case("mixtral"), ["w1", "w3", "w2"]
    model = case.fresh_reference()
    tensors = factors_of_each(model, STEM.replace("mlp", "block_sparse_moe"), names)
    write(tmp_path / "old", tensors, target_modules=names)
    scores_are_those_of(case, model, tmp_path / "old")
