"""Adapters on routed experts: what peft writes is read, and what is written here peft reads.

Scores, gradients of all weights, text, saves and tenants of these families: test_families.py.
"""

import json

import peft
import pytest
import torch
from parity import ours, reference
from parity.families import recipes as families
from parity.families.test_families import expect_scores, learn
from parity.test_gradients import check

NATIVE = [name for name in families.ROUTED if not families.FAMILIES[name].alien]
LATENT = ["q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
PARAMETERS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
HALVES = ["q_proj", "gate_proj", "up_proj", "down_proj"]


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


@pytest.mark.parametrize("name", NATIVE)
def test_stacked_adapters_of_peft_are_read_with_their_gradients_and_come_back_bit_for_bit(
    name, tmp_path
):
    case = families.case(name)
    modules = ["q_proj"]
    if name in families.LATENT:
        modules = LATENT[:1] + LATENT[3:] if name == "deepseek_v2_lite" else LATENT[1:]
    model = adapted(case, tmp_path / "theirs", target_modules=modules, target_parameters=PARAMETERS)
    made = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    expect_scores(made, model, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path / "mine")
    mine, theirs = (peft.get_peft_model_state_dict(m) for m in (back, model))
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(mine[key], value), key
    grads, _ = ours.gradients(made, case.sequences)
    check(by_stack(grads), reference.adapter_gradients(model, case.sequences))


def test_what_peft_makes_of_gate_up_and_down_is_read_with_its_ranks(tmp_path):
    """It turns the names of experts' linears into stacks, with twice the rank of gate and up."""
    case = families.case("qwen3_moe")
    model = adapted(case, tmp_path, target_modules=HALVES)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert written["rank_pattern"] and written["target_parameters"]
    expect_scores(ours.engine(case.directory, directory=str(tmp_path)), model, case)


@pytest.mark.parametrize("name", ["qwen3_moe"])
def test_adapters_of_each_experts_linears_are_read_by_peft(name, tmp_path):
    case = families.case(name)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": HALVES}
    made = ours.engine(case.directory, lora_json=json.dumps(config))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path)).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path)
    expect_scores(made, back, case)


def test_a_router_is_not_adapted():
    case = families.case("qwen3_moe")
    config = {"peft_type": "LORA", "r": 4, "target_parameters": ["mlp.gate.weight"]}
    with pytest.raises(Exception, match="a router is not adapted"):
        ours.engine(case.directory, lora_json=json.dumps(config))
