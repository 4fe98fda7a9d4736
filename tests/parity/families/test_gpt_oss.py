"""gpt-oss alone: its mxfp4 files, which say what their values in bfloat16 say; adapters of peft
where in and out are of one size; what its files must have and its config may leave out.

The rest of the family: test_families.py, test_experts.py, test_schedules.py and their neighbours.
"""

import json
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
import transformers
from parity import models, ours, reference
from parity.families import recipes as families
from parity.families.test_bad_files import changed, expect_refusal
from parity.families.test_experts import PARAMETERS, adapted, learn_and_be_read_by_peft
from parity.families.test_families import expect_scores, learn, tensors_in
from parity.families.test_old_adapters import OF_0_18, SCALE, STEM, E, R, write
from parity.test_gradients import check

from twinkle.errors import InvalidError

LAYER = "model.layers.1."
STACK = LAYER + "mlp.experts.down_proj"
METHOD = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


def quantised(tensors):
    """The hub's files of such weights, and their values. Of [E, in, out] the transposes are packed,
    each 32 inputs with a power of two, two of their values in a byte."""
    sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    table = torch.cat([sizes, -sizes])
    files, values = {}, {}
    for name, t in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            files[name] = values[name] = t
            continue
        blocks = t.transpose(1, 2).unflatten(2, (-1, 32))
        exponent = blocks.abs().amax(-1, keepdim=True).log2().floor() - 2
        nibbles = (blocks / exponent.exp2()).unsqueeze(-1).sub(table).abs().argmin(-1)
        low, high = nibbles[..., 0::2], nibbles[..., 1::2]
        files[name + "_blocks"] = (low + 16 * high).to(torch.uint8)
        files[name + "_scales"] = (exponent.squeeze(-1) + 127).to(torch.uint8)
        real = (table[nibbles] * exponent.exp2()).flatten(2).transpose(1, 2)
        assert torch.equal(real, real.bfloat16().float())
        values[name] = real.contiguous()
    return files, values


def written(folder, tensors, fields):
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields))
    return str(folder)


def packed_in(folder):
    """The case's mxfp4 folder and that of their values, there, and the values."""
    case = families.case("gpt_oss")
    files, values = quantised(tensors_in(case.directory))
    fields = json.loads((Path(case.directory) / "config.json").read_text())
    packed = written(folder / "mxfp4", files, fields | METHOD)
    return packed, written(folder / "values", values, fields), values


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The case and what packed_in returns of it. Not to be changed."""
    return families.case("gpt_oss"), *packed_in(tmp_path_factory.mktemp("both"))


def test_mxfp4_weights_are_their_values_as_transformers_reads_them_and_are_saved_as_those(
    both, tmp_path
):
    case, packed, plain, values = both
    made = ours.engine(packed)
    mine, theirs = (ours.scores(e, case.sequences)[0] for e in (made, ours.engine(plain)))
    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one, other)
    expect_scores(made, models.load_reference(plain), case)
    options = {"quantization_config": transformers.Mxfp4Config(dequantize=True)}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        packed, dtype=torch.float32, attn_implementation="eager", **options
    )
    expect_scores(made, model.eval(), case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "saved")).result()
    saved = tensors_in(tmp_path / "saved")
    assert saved.keys() == values.keys()
    assert all(torch.equal(saved[name], value) for name, value in values.items())
    assert "quantization_config" not in json.loads((tmp_path / "saved" / "config.json").read_text())
    learn(made, case)
    made.load(tenant=ours.TENANT, directory=packed).result()  # as a base's own files
    for one, other in zip(ours.scores(made, case.sequences)[0], mine, strict=True):
        assert torch.equal(one, other)


def test_blocks_and_scales_may_lie_in_two_files(both, tmp_path):
    case, packed, plain, _ = both
    config = json.loads((Path(packed) / "config.json").read_text())
    files = safetensors.torch.load_file(packed + "/model.safetensors")
    shards = {
        "1.safetensors": {key: t for key, t in files.items() if not key.endswith("_scales")},
        "2.safetensors": {key: t for key, t in files.items() if key.endswith("_scales")},
    }
    folder = written(tmp_path / "shards", {}, config)
    (tmp_path / "shards" / "model.safetensors").unlink()
    for shard, tensors in shards.items():
        safetensors.torch.save_file(tensors, f"{folder}/{shard}", {"format": "pt"})
    places = {key: shard for shard, tensors in shards.items() for key in tensors}
    index = tmp_path / "shards" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    made, whole = ours.engine(folder, frozen=True), ours.engine(plain, frozen=True)
    for one, other in zip(*(ours.scores(e, case.sequences)[0] for e in (made, whole)), strict=True):
        assert torch.equal(one, other)
    del places[STACK + "_scales"]
    index.write_text(json.dumps({"weight_map": places}))
    expect_refusal(folder, folder, f"'{STACK}_blocks' is there, but not '{STACK}_scales'")


def test_a_save_in_bfloat16_has_the_very_values(both, tmp_path):
    _, packed, _, values = both
    made = ours.engine(packed, precision="bf16")
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "saved")).result()
    saved = tensors_in(tmp_path / "saved")
    for name, value in values.items():  # norms are float32, as in transformers
        expected = value if name.endswith("norm.weight") else value.bfloat16()
        assert torch.equal(saved[name], expected), name


def test_an_adapter_on_mxfp4_weights_is_read_by_peft_over_their_values(both, tmp_path):
    case, packed, plain, _ = both
    fields = {"target_modules": ["q_proj", "o_proj"], "target_parameters": PARAMETERS}
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", **fields}
    made = ours.engine(packed, lora_json=json.dumps(config))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "adapter")).result()
    back = peft.PeftModel.from_pretrained(models.load_reference(plain), tmp_path / "adapter")
    expect_scores(made, back, case)


@pytest.fixture
def square(tmp_path):
    """As of the published models, whose width is that of an expert: no shape of down's says which
    is in."""
    fields = families.FAMILIES["gpt_oss"].fields | {"intermediate_size": 64}
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.GptOssConfig(**families.SIZES | fields), attn_implementation="eager"
    )
    models.randomise(model)
    model.save_pretrained(tmp_path / "base")
    case = models.Case(0, "square", str(tmp_path / "base"), [], [], 4096)
    case.sequences = families.case("gpt_oss").sequences
    return case


def test_adapters_of_square_experts_are_read_in_and_out_as_peft_has_them(square, tmp_path):
    case = square
    model = adapted(
        case, tmp_path / "theirs", target_parameters=PARAMETERS, target_modules=["v_proj"]
    )
    made = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    expect_scores(made, model, case)
    learn_and_be_read_by_peft(made, case, tmp_path / "mine")


@torch.no_grad()
def test_square_stacks_over_transformers_4_are_turned_as_those_beside_them_say(square, tmp_path):
    """Models whose class does not say that its stacks are [E, in, out]: peft 0.19 and later takes
    them for [E, out, in]. The file names no version of transformers."""
    model, tensors = square.fresh_reference(), {}
    for i, layer in enumerate(model.model.layers):
        experts = layer.mlp.experts
        for inner, weight in ((".base_layer", experts.gate_up_proj), ("", experts.down_proj)):
            _, rows, columns = weight.shape
            a, b = torch.randn(E * R, columns) * 0.2, torch.randn(rows, R * E) * 0.2
            key = STEM.format(i) + inner
            tensors |= {key + ".lora_A.weight": a, key + ".lora_B.weight": b}
            factors = b.view(rows, R, E), a.view(E, R, columns)
            weight.add_(SCALE * torch.einsum("ore,eri->eoi", *factors))
    assert tensors[STEM.format(0) + ".lora_A.weight"].shape == (E * R, 64)
    fields = OF_0_18 | {"peft_version": "0.19.0", "target_parameters": PARAMETERS}
    write(tmp_path / "old", tensors, **fields)
    expect_scores(ours.engine(square.directory, directory=str(tmp_path / "old")), model, square)


def test_factors_of_each_experts_gates_and_ups_are_those_of_the_stacks_rows_in_turn(tmp_path):
    case = families.case("gpt_oss")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_parameters": PARAMETERS}
    made = ours.engine(case.directory, lora_json=json.dumps(config))
    learn(made, case)
    folder = str(tmp_path / "each")
    made.save(tenant=ours.TENANT, directory=folder, expert_format="per_expert").result()
    again = ours.engine(case.directory, directory=folder)
    for one, other in zip(*(ours.scores(e, case.sequences)[0] for e in (made, again)), strict=True):
        assert torch.equal(one, other)


def test_all_linear_learns_what_the_weights_with_it_added_say(tmp_path):
    """q, k, v, o and each expert's gate, up and down: their products merged into the turned stacks
    give the same scores."""
    case = families.case("gpt_oss")
    config = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    made = ours.engine(case.directory, lora_json=json.dumps(config))
    learn(made, case)
    folder = str(tmp_path / "adapter")
    made.save(tenant=ours.TENANT, directory=folder, expert_format="per_expert").result()
    factors = safetensors.torch.load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    weights = tensors_in(case.directory)
    for path in {key.rsplit(".lora_", 1)[0] for key in factors}:
        added = 1.5 * factors[path + ".lora_B.weight"] @ factors[path + ".lora_A.weight"]
        head, _, rest = path.removeprefix("base_model.model.").partition(".experts.")
        if not rest:
            weights[head + ".weight"] += added
            continue
        expert, linear = rest.split(".")
        place = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}
        stack = "down_proj" if linear == "down_proj" else "gate_up_proj"
        columns = place.get(linear, slice(None))
        weights[f"{head}.experts.{stack}"][int(expert)][:, columns] += added.T
    fields = json.loads((Path(case.directory) / "config.json").read_text())
    whole = ours.engine(written(tmp_path / "merged", weights, fields))
    for one, other in zip(*(ours.scores(e, case.sequences)[0] for e in (made, whole)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_what_the_config_leaves_out_is_what_transformers_takes(tmp_path):
    """Yarn and its theta, the layers that slide, their window and the clamp."""
    fields = {k: v for k, v in families.FAMILIES["gpt_oss"].fields.items() if "experts" in k}
    torch.manual_seed(6)
    config = transformers.GptOssConfig(**families.SIZES | fields | {"intermediate_size": 32})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    models.randomise(model)
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    written = json.loads(file.read_text())
    absent = ("rope_parameters", "layer_types", "sliding_window", "attention_bias")
    for key in (*absent, "swiglu_limit", "swiglu_alpha"):
        del written[key]
    file.write_text(json.dumps(written))
    case = models.Case(0, "short", str(tmp_path), [], [], 4096)
    case.sequences = families.case("gpt_oss").sequences
    expect_scores(ours.engine(case.directory, frozen=True), case.reference, case)
    grads, _ = ours.gradients(ours.engine(case.directory), case.sequences)
    check(grads, reference.gradients(case.reference.requires_grad_(True), case.sequences))


OTHERS = {
    "a router's bias": (LAYER + "mlp.router.bias", None, ["has no tensor"]),
    "sinks": (LAYER + "self_attn.sinks", torch.zeros(5), ["[5]", "[4]"]),
    "a stack turned": (STACK, torch.zeros(8, 64, 32), ["[8, 64, 32]", "[8, 32, 64]"]),
    "a stack's bias": (STACK + "_bias", torch.zeros(8, 32), ["[8, 32]", "[8, 64]"]),
}


@pytest.mark.parametrize("what", OTHERS)
def test_tensors_that_it_alone_has_are_refused_where_they_do_not_fit(what, tmp_path):
    key, value, words = OTHERS[what]
    folder = changed("gpt_oss", tmp_path, {key: value})
    expect_refusal(folder, folder, key, *words, "fetch both again")


def test_blocks_and_scales_that_do_not_fit_are_refused(both, tmp_path):
    _, packed, _, _ = both
    files = safetensors.torch.load_file(packed + "/model.safetensors")
    config = json.loads((Path(packed) / "config.json").read_text())
    folder = written(tmp_path / "changed", files, config)
    blocks, scales = (files[STACK + end] for end in ("_blocks", "_scales"))
    lost = {STACK + "_scales": None}
    for tensors, words in (
        (lost, ["is there, but not", STACK + "_scales", "fetch the checkpoint again"]),
        (
            {STACK + "_blocks": None},
            [f"'{STACK}_scales' is there, but not '{STACK}_blocks'", "fetch the checkpoint again"],
        ),
        (
            {STACK + "_scales": scales[:-1]},
            [f"{STACK}_scales", "[7, 64, 1]", "[8, 64, 1]", "fetch"],
        ),
        ({STACK + "_blocks": blocks[..., :8]}, [f"{STACK}_blocks", "[8, 64, 1, 8]", "32, 16]"]),
        ({STACK + "_blocks": blocks[:, :-1], STACK + "_scales": scales[:, :-1]}, ["[8, 32, 63]"]),
        (
            {STACK + "_scales": torch.full_like(scales, 255)},
            [STACK, "NaN or infinity", "fetch the checkpoint"],
        ),
    ):
        more = {key: t for key, t in (files | tensors).items() if t is not None}
        more = {key: t.contiguous() for key, t in more.items()}
        safetensors.torch.save_file(more, folder + "/model.safetensors")
        expect_refusal(folder, folder, *words)


def test_a_field_that_it_alone_reads_is_refused_elsewhere_and_where_it_cannot_be(tmp_path):
    for name, value, words in (
        ("mixtral", 7.0, ["'swiglu_limit' is 7E0", "'mixtral'"]),
        ("gpt_oss", -1.0, ["'swiglu_limit' is -1, it must be at least 0.001"]),
    ):
        (tmp_path / name).mkdir()
        folder = changed(name, tmp_path / name, fields={"swiglu_limit": value})
        expect_refusal(folder, folder, *words)


def test_its_router_is_not_adapted():
    case = families.case("gpt_oss")
    config = {"peft_type": "LORA", "r": 4, "target_parameters": ["mlp.router.weight"]}
    with pytest.raises(InvalidError, match="a router is not adapted"):
        ours.engine(case.directory, lora_json=json.dumps(config))
