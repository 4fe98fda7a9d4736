"""Adapters on routed experts: what peft writes is read, and what is written here peft reads.

Scores, gradients of all weights, text, saves and tenants of these families: test_families.py.
"""

import json
import re

import peft
import pytest
import safetensors.torch
import torch
from parity import ours, reference
from parity.families import recipes as families
from parity.families.test_families import FIELDS, expect_scores, learn
from parity.test_gradients import check
from peft.utils import transformers_weight_conversion

NATIVE = [name for name in families.ROUTED if not families.FAMILIES[name].alien]
# Families whose twin has the family's class. That of deepseek is on the hub, with a module for each
# expert.
STACKED = [name for name in families.ROUTED if name != "deepseek"]
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
HALVES = ["q_proj", "gate_proj", "up_proj", "down_proj"]
MIXTRALS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


@pytest.fixture
def names_of_modules(monkeypatch):
    """peft takes gate_proj, up_proj and down_proj, wherever they are, for the experts' stacks, and
    leaves out those of dense layers and of shared experts. Not here: a name is a module's."""
    convert = "_convert_peft_config_moe"
    monkeypatch.setattr(transformers_weight_conversion, convert, lambda *args: None)


def every_linear(model):
    """The paths of all but the head and the routers; experts are parameters of their own."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    ]


def adapted(case, directory, **options):
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(case.fresh_reference(), config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.1)
    model.save_pretrained(str(directory))
    return model


def learn_and_be_read_by_peft(made, case, directory):
    """The engine, and peft over the same base, which has the adapter that it saves."""
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(directory)).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), directory)
    expect_scores(made, back, case)


def by_stack(grads):
    """Those of each expert as peft has them, A by rows and B by columns that are E apart."""
    out, parts = {}, {}
    for name, value in grads.items():
        head, _, rest = name.partition(".experts.")
        if not rest:
            out[name] = value
            continue
        expert, linear, half, _ = rest.split(".")
        parts.setdefault((head, linear, half), {})[int(expert)] = value
    for (head, linear, half), pieces in parts.items():
        ordered = [pieces[e] for e in range(len(pieces))]
        stem = f"{head}.experts" + (".base_layer" if linear == "gate_up_proj" else "")
        whole = torch.cat(ordered) if half == "lora_A" else torch.stack(ordered, 2).flatten(1)
        out[f"{stem}.{half}.weight"] = whole
    return out


@pytest.mark.usefixtures("names_of_modules")
@pytest.mark.parametrize("name", NATIVE)
def test_stacked_adapters_of_peft_are_read_with_their_gradients_and_come_back_bit_for_bit(
    name, tmp_path
):
    """With adapters on every linear besides."""
    case = families.case(name)
    modules = every_linear(case.reference)
    model = adapted(case, tmp_path / "theirs", target_modules=modules, target_parameters=PARAMETERS)
    made = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    expect_scores(made, model, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path / "mine")
    mine, theirs = (peft.get_peft_model_state_dict(m) for m in (back, model))
    assert mine.keys() == theirs.keys()
    assert {key.rsplit(".lora_", 1)[0].removeprefix("base_model.model.") for key in mine} >= set(
        modules
    )
    for key, value in theirs.items():
        assert torch.equal(mine[key], value), key
    grads, _ = ours.gradients(made, case.sequences)
    expected = reference.adapter_gradients(model, case.sequences)
    check(by_stack(grads), expected)
    assert all(grad.abs().max() > 0 for grad in expected.values())


def test_what_peft_makes_of_gate_up_and_down_is_read_with_its_ranks(tmp_path):
    """It turns the names of experts' linears into stacks, with twice the rank of gate and up."""
    case = families.case("qwen3_moe")
    model = adapted(case, tmp_path, target_modules=HALVES)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert written["rank_pattern"] and written["target_parameters"]
    expect_scores(ours.engine(case.directory, directory=str(tmp_path)), model, case)


def by_expert(grads, rank, in_turn=False):
    """Those of stacks that peft has made of experts' linears, as gradients of these: the rows of a
    gate's A come before its up's, and of B, which is 0 elsewhere, the two have a block each, or
    every other row."""
    out = {}
    for name, value in grads.items():
        head, dot, rest = name.partition(".experts.")
        if not dot:
            out[name] = value
            continue
        inner, a = rest.startswith("base_layer."), rest.endswith("lora_A.weight")
        linears = ["gate_proj", "up_proj"] if inner else ["down_proj"]
        count = len(linears)
        rows = value.shape[0] // count
        for i, linear in enumerate(linears):
            ranks = slice(i * rank, (i + 1) * rank)
            if a:
                each = value.view(-1, len(linears) * rank, value.shape[1])[:, ranks]
            else:
                stack = value.view(value.shape[0], len(linears) * rank, -1)
                mine = slice(i, None, count) if in_turn else slice(i * rows, (i + 1) * rows)
                each = stack[mine, ranks].permute(2, 0, 1)
            half = f"{linear}.lora_{'A' if a else 'B'}.weight"
            out |= {f"{head}.experts.{e}.{half}": of for e, of in enumerate(each)}
    return out


@pytest.mark.parametrize("name", NATIVE)
def test_adapters_of_each_experts_linears_are_read_by_peft_and_have_its_gradients(name, tmp_path):
    case = families.case(name)
    each = [f"experts.{e}.{linear}" for e in range(8) for linear in HALVES[1:]]
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["o_proj", *each]}
    made = ours.engine(case.directory, lora_json=json.dumps(config))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path, is_trainable=True)
    expect_scores(made, back, case)
    grads, _ = ours.gradients(made, case.sequences)
    expected = reference.adapter_gradients(back, case.sequences)
    expected = by_expert(expected, 4, in_turn=name == "gpt_oss")
    assert grads.keys() == expected.keys()
    check(grads, expected)


def equal_scores(one, other, case):
    for mine, theirs in zip(
        *(ours.scores(made, case.sequences)[0] for made in (one, other)), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", STACKED)
def test_an_adapter_on_every_linear_is_read_by_peft_with_all_factors_and_trained_on_here(
    name, tmp_path
):
    """By peft as it is: no name of a dense layer or of a shared expert is one of the experts'."""
    case = families.case(name)
    made = ours.engine(case.twin, lora_json=json.dumps(FIELDS))
    learn(made, case)
    saved = str(tmp_path / "saved")
    made.save(tenant=ours.TENANT, directory=saved, optimizer=True).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), saved)
    expect_scores(made, back, case)
    written = safetensors.torch.load_file(tmp_path / "saved" / "adapter_model.safetensors")
    theirs = peft.get_peft_model_state_dict(back)
    assert theirs.keys() == written.keys()
    assert all(torch.equal(theirs[key], value) for key, value in written.items())
    again = ours.engine(case.twin, directory=saved)
    equal_scores(made, again, case)
    again.load(tenant=ours.TENANT, directory=saved, optimizer=True).result()
    for engine in (made, again):
        learn(engine, case)
    equal_scores(made, again, case)
    back.save_pretrained(str(tmp_path / "theirs"))  # without the words for us
    expect_scores(ours.engine(case.twin, directory=str(tmp_path / "theirs")), back, case)


@pytest.mark.parametrize("name", ["qwen2_moe", "glm4_moe", "gpt_oss"])
def test_patterns_and_expressions_keep_ranks_and_scales_in_the_form_that_peft_reads(name, tmp_path):
    """peft has no dropout of parameters: its form says 0, and what is read here has it still."""
    case = families.case(name)
    patterns = {
        "rank_pattern": {"q_proj": 2, "layers.0.mlp.*": 3},
        "alpha_pattern": {"down_proj": 9},
    }
    targets = r"model\.layers\.\d\..*\.(q_proj|o_proj|up_proj|down_proj)"
    fields = FIELDS | patterns | {"target_modules": targets}
    made = ours.engine(
        case.twin, lora_json=json.dumps(fields | {"use_rslora": True, "lora_dropout": 0.1})
    )
    learn_and_be_read_by_peft(made, case, tmp_path)
    equal_scores(made, ours.engine(case.twin, directory=str(tmp_path)), case)


@pytest.mark.parametrize(
    ("patterns", "why"),
    [
        ({"rank_pattern": {"experts.0.up_proj": 2}}, "has experts of different ranks or scales"),
        (
            {"alpha_pattern": {"up_proj": 10}},
            "has a gate_proj of scale 1.50* and an up_proj of 2.5",
        ),
    ],
)
def test_who_saves_what_no_stack_of_peft_can_hold_is_warned_and_reads_it_here(
    patterns, why, tmp_path, capfd
):
    case = families.case("qwen3_moe")
    made = ours.engine(case.twin, lora_json=json.dumps(FIELDS | patterns))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    said = capfd.readouterr().err
    assert re.search(rf"peft cannot read the adapter of tenant '{ours.TENANT}': .* {why}", said)
    assert "one rank and one scale to all experts of a stack" in said
    equal_scores(made, ours.engine(case.twin, directory=str(tmp_path)), case)


def test_a_class_that_has_a_module_for_each_expert_has_its_factors(tmp_path):
    case = families.case("deepseek")
    made = ours.engine(case.directory, lora_json=json.dumps(FIELDS))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    written = safetensors.torch.load_file(tmp_path / "adapter_model.safetensors")
    assert "base_model.model.model.layers.1.mlp.experts.7.up_proj.lora_A.weight" in written
    equal_scores(made, ours.engine(case.directory, directory=str(tmp_path)), case)


FORMS = {
    "all-linear": {"target_modules": "all-linear"},
    "all-linear and stacks": {"target_modules": "all-linear", "target_parameters": PARAMETERS},
    "seven names": {"target_modules": SEVEN},
    "two names": {"target_modules": ["o_proj", "down_proj"]},
    "paths": {},
    "paths and stacks": {"target_parameters": PARAMETERS},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STACKED)
def test_what_peft_makes_of_usual_targets_is_read_and_comes_back(name, form, tmp_path, monkeypatch):
    """Also where its names match nothing, or nothing but modules that are no experts'."""
    case = families.case(name)
    # It writes the endings of so many paths or more, which real models always have.
    monkeypatch.setattr(peft.tuners.tuners_utils, "MIN_TARGET_MODULES_FOR_OPTIMIZATION", 8)
    model = adapted(
        case, tmp_path / "theirs", **{"target_modules": every_linear(case.reference)} | FORMS[form]
    )
    written = json.loads((tmp_path / "theirs" / "adapter_config.json").read_text())
    if "gate.weight" in (written["target_parameters"] or []):
        assert form.startswith("all-linear")
        with pytest.raises(Exception, match=r"a router, .* a list of names in target_modules"):
            ours.engine(case.twin, directory=str(tmp_path / "theirs"))
        return
    made = ours.engine(case.twin, directory=str(tmp_path / "theirs"))
    expect_scores(made, model, case)
    learn_and_be_read_by_peft(made, case, tmp_path / "mine")
    equal_scores(made, ours.engine(case.twin, directory=str(tmp_path / "mine")), case)


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_stacks_are_written_for_each_expert_on_request_and_peft_reads_them(name, tmp_path):
    case = families.case(name)
    fields = {"target_modules": ["q_proj"], "target_parameters": PARAMETERS}
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **fields}
    made = ours.engine(case.directory, lora_json=json.dumps(config))
    learn(made, case)
    directory = str(tmp_path / "each")
    made.save(tenant=ours.TENANT, directory=directory, expert_format="per_expert").result()
    written = safetensors.torch.load_file(tmp_path / "each" / "adapter_model.safetensors")
    names, module = dict(MIXTRALS), "block_sparse_moe"
    if name != "mixtral":
        names, module = {each: each for each in names}, "mlp"
    stem = f"base_model.model.model.layers.1.{module}.experts.7."
    assert written[f"{stem}{names['gate_proj']}.lora_A.weight"].shape == (4, 64)
    assert written[f"{stem}{names['up_proj']}.lora_B.weight"].shape == (24, 4)
    expect_scores(made, peft.PeftModel.from_pretrained(case.fresh_reference(), directory), case)
    equal_scores(made, ours.engine(case.directory, directory=directory), case)


def shared_factors(grads):
    """Those that experts share, gates' and ups' A and downs' B, as their sum, by the first one's
    name."""
    out = {}
    for name, value in grads.items():
        head, _, rest = name.partition(".experts.")
        _, linear, half, _ = rest.split(".")
        is_shared = (linear == "down_proj") == (half == "lora_B")
        key = f"{head}.experts.0.{linear}.{half}.weight" if is_shared else name
        out[key] = out.get(key, 0) + value
    return out


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "of each expert"])
def test_tinkers_factors_are_those_of_each_expert_as_peft_reads_them(shared, tmp_path):
    """w1, w3, w2: all experts' gates, ups and downs, of which the outer factors may be shared."""
    case = families.case("qwen3_moe")
    torch.manual_seed(4)
    tinkers, each = {}, {}
    for layer in range(2):
        stem = f"base_model.model.model.layers.{layer}.mlp.experts."
        for theirs, name in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
            down = theirs == "w2"
            a = torch.randn(1 if shared and not down else 8, 4, 24 if down else 64) / 4
            b = torch.randn(1 if shared and down else 8, 64 if down else 24, 4) / 4
            tinkers |= {f"{stem}{theirs}.lora_A.weight": a, f"{stem}{theirs}.lora_B.weight": b}
            for e in range(8):
                one = f"{stem}{e}.{name}."
                each[one + "lora_A.weight"] = a[e % len(a)].clone()
                each[one + "lora_B.weight"] = b[e % len(b)].clone()
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": HALVES[1:]}
    for folder, tensors in (("tinkers", tinkers), ("each", each)):
        (tmp_path / folder).mkdir()
        safetensors.torch.save_file(tensors, tmp_path / folder / "adapter_model.safetensors")
        (tmp_path / folder / "adapter_config.json").write_text(json.dumps(config))
    made = ours.engine(case.directory, directory=str(tmp_path / "tinkers"))
    model = peft.PeftModel.from_pretrained(
        case.fresh_reference(), tmp_path / "each", is_trainable=True
    )
    expect_scores(made, model, case)
    grads, _ = ours.gradients(made, case.sequences)
    expected = by_expert(reference.adapter_gradients(model, case.sequences), 4)
    check(grads, shared_factors(expected) if shared else expected)
    # The default form of each expert's own factors is peft's of today.
    form = {} if shared else {"expert_format": "per_expert"}
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "again"), **form).result()
    again = safetensors.torch.load_file(tmp_path / "again" / "adapter_model.safetensors")
    given = tinkers if shared else each
    assert again.keys() == given.keys()
    assert all(torch.equal(again[key], value) for key, value in given.items())


def test_a_router_is_not_adapted():
    case = families.case("qwen3_moe")
    config = {"peft_type": "LORA", "r": 4, "target_parameters": ["mlp.gate.weight"]}
    with pytest.raises(Exception, match="a router is not adapted"):
        ours.engine(case.directory, lora_json=json.dumps(config))
