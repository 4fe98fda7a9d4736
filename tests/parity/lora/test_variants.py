"""Variants of LoRA equal peft's: scores and gradients in float32, with files both ways."""

import json

import peft
import pytest
import torch
from parity import models, ours, reference
from parity.test_gradients import check

STEP = {"optimizer": "AdamW", "options": json.dumps({"lr": 2e-3}), "max_grad_norm": 1.0}
LISTED = {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj", "up_proj"]}
VARIANTS = {
    "layers": {**LISTED, "layers_to_transform": [1, 2]},
    "one_layer": {**LISTED, "layers_to_transform": 0, "layers_pattern": "layers"},
    "excluded": {**LISTED, "exclude_modules": ["0.mlp.up_proj", "q_proj"]},
    "excluded_by_expression": {
        "r": 2, "target_modules": "all-linear", "exclude_modules": r".*\.mlp\..*|.*0\..*k_proj"
    },
    "gaussian": {**LISTED, "init_lora_weights": "gaussian"},
    "dora": {**LISTED, "use_dora": True},
    "dora_ranks": {**LISTED, "use_dora": True, "use_rslora": True, "rank_pattern": {"q_proj": 5}},
}  # fmt: skip
PISSA = {
    "pissa": {**LISTED, "init_lora_weights": "pissa"},
    "pissa_rslora": {**LISTED, "init_lora_weights": "pissa", "use_rslora": True},
    "pissa_ranks": {**LISTED, "init_lora_weights": "pissa_niter_4", "rank_pattern": {"q_proj": 2}},
}


def first_of_three_layers(family):
    every = range(models.FAMILIES.index(family), models.COUNT, len(models.FAMILIES))
    return next(i for i in every if models.draw(i).fields["num_hidden_layers"] >= 3)


CASES = [first_of_three_layers(family) for family in models.FAMILIES]  # qwen2's have biases


def config_of(options):
    return peft.LoraConfig(task_type="CAUSAL_LM", **options)


def expect_scores(made, model, sequences):
    for got, sequence in zip(ours.scores(made, sequences)[0], sequences, strict=True):
        with torch.no_grad():
            want = reference.logps(model, sequence)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


def expect_gradients(made, model, sequences):
    grads, _ = ours.gradients(made, sequences)
    theirs = reference.adapter_gradients(model, sequences)
    check(grads, {n.replace("vector.weight", "vector"): g for n, g in theirs.items()})


def trained(case, options, steps=2):
    made = ours.engine(case.directory, lora_json=json.dumps(options), seed=3)
    for _ in range(steps):
        ours.backward(made, case.sequences)
        made.step(tenant=ours.TENANT, **STEP).result()
    return made


def read_by_peft(case, directory):
    return peft.PeftModel.from_pretrained(
        case.fresh_reference(), directory, is_trainable=True
    ).eval()


@pytest.mark.parametrize("index", CASES, ids=models.name_of)
@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_saved_here_scores_and_learns_in_peft_as_here(tmp_path, name, index):
    case = models.case(index)
    made = trained(case, VARIANTS[name])
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "ours")).result()
    model = read_by_peft(case, tmp_path / "ours")
    expect_scores(made, model, case.sequences)
    expect_gradients(made, model, case.sequences)


@pytest.mark.parametrize("index", CASES, ids=models.name_of)
@pytest.mark.parametrize("name", VARIANTS)
def test_what_peft_saves_scores_and_learns_here_as_there(tmp_path, name, index):
    case = models.case(index)
    torch.manual_seed(index)
    model = peft.get_peft_model(case.fresh_reference(), config_of(VARIANTS[name])).eval()
    with torch.no_grad():
        for parameter, value in model.named_parameters():
            if "lora_B" in parameter or "magnitude" in parameter:
                value.add_(torch.randn_like(value) * value.std().clamp(min=0.05) / 2)
    model.save_pretrained(tmp_path)
    made = ours.engine(case.directory, directory=str(tmp_path))
    expect_scores(made, model, case.sequences)
    expect_gradients(made, model, case.sequences)


@pytest.mark.parametrize("index", CASES, ids=models.name_of)
@pytest.mark.parametrize("name", PISSA)
def test_pissa_begins_as_the_base_and_is_saved_as_a_lora_of_twice_the_rank(tmp_path, name, index):
    case, options = models.case(index), PISSA[name]
    expect_scores(trained(case, options, steps=0), case.reference, case.sequences)
    made = trained(case, options)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "ours")).result()
    model = read_by_peft(case, tmp_path / "ours")
    expect_scores(made, model, case.sequences)
    # A and B are the first half of what peft reads.
    grads, _ = ours.gradients(made, case.sequences)
    theirs = reference.adapter_gradients(model, case.sequences)
    check(grads, {n: g[tuple(map(slice, grads[n].shape))] for n, g in theirs.items()})
    again, _ = ours.gradients(
        ours.engine(case.directory, directory=str(tmp_path / "ours")), case.sequences
    )
    assert again.keys() == grads.keys()
    assert all(torch.equal(again[n], grads[n]) for n in grads), "of rank r, bit for bit"


@pytest.mark.parametrize("index", CASES, ids=models.name_of)
def test_pissa_starts_with_pefts_residual_and_gradients(tmp_path, index):
    """Signs of singular vectors are free: a column's gradients in both factors turn with them."""
    case, options = models.case(index), PISSA["pissa"]
    made = trained(case, options, steps=0)
    model = peft.get_peft_model(case.fresh_reference(), config_of(options)).eval()
    expect_scores(made, model, case.sequences)
    grads, _ = ours.gradients(made, case.sequences)
    theirs = reference.adapter_gradients(model, case.sequences)
    check({n: g.abs() for n, g in grads.items()}, {n: g.abs() for n, g in theirs.items()})


@pytest.mark.parametrize("index", CASES, ids=models.name_of)
def test_pissa_that_peft_converts_is_read_here(tmp_path, index):
    case, start = models.case(index), str(tmp_path / "start")
    model = peft.get_peft_model(case.fresh_reference(), config_of(PISSA["pissa"])).eval()
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(start)
    model.peft_config["default"].init_lora_weights = "pissa"
    with torch.no_grad():
        for parameter, value in model.named_parameters():
            if "lora_" in parameter:
                value.mul_(1 + 0.1 * torch.randn_like(value))
    model.save_pretrained(tmp_path / "theirs", path_initial_model_for_weight_conversion=start)
    made = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    expect_scores(made, model, case.sequences)


@pytest.mark.parametrize("name", ["gaussian", "dora", "pissa"])
def test_a_run_goes_on_from_its_files_with_the_same_bits(tmp_path, name):
    case = models.case(CASES[0])
    made = trained(case, (VARIANTS | PISSA)[name])
    folder = str(tmp_path / "state")
    made.save(tenant=ours.TENANT, directory=folder, optimizer=True).result()
    again = ours.engine(case.directory, directory=folder)
    again.load(tenant=ours.TENANT, directory=folder, optimizer=True).result()
    ends = []
    for engine in (made, again):
        ours.backward(engine, case.sequences)
        engine.step(tenant=ours.TENANT, **STEP).result()
        state = engine.inspect(tenant=ours.TENANT).result()
        ends.append((state["weights"], state["optimizer"], state["step"]))
    assert ends[0] == ends[1] and ends[0][2] == 3


@pytest.mark.parametrize("name", ["dora", "pissa"])
def test_a_sampled_tokens_log_probability_is_that_of_training_beside_other_tenants(name):
    case = models.case(CASES[0])
    made = trained(case, (VARIANTS | PISSA)[name])
    made.create(tenant="other", lora_json=json.dumps(VARIANTS["gaussian"])).result()
    prompts = [case.sequences[-1]["input_ids"][:5], case.sequences[-1]["input_ids"][:9]]
    for prompt, (tokens, logprobs) in zip(prompts, ours.greedy(made, prompts, 8), strict=True):
        ids = [*prompt, *tokens]
        labels = [*ids[1:], -100]
        scored = ours.scores(made, [{"input_ids": ids, "labels": labels}])[0][0]
        assert scored[len(prompt) - 1 : -1].tolist() == list(logprobs)


@pytest.mark.parametrize("name", ["dora", "pissa"])
def test_a_tenant_has_the_same_bits_beside_others(name):
    case, options = models.case(CASES[0]), (VARIANTS | PISSA)[name]
    alone = trained(case, options).inspect(tenant=ours.TENANT).result()["weights"]
    made = ours.engine(case.directory, lora_json=json.dumps(options), seed=3)
    for tenant, name in (("plain", "gaussian"), ("dora", "dora_ranks")):
        made.create(tenant=tenant, lora_json=json.dumps(VARIANTS[name])).result()
    names = ("plain", ours.TENANT, "dora")
    for _ in range(2):
        sent = [made.forward_backward(tenant=t, sequences=case.sequences) for t in names]
        for future in sent:
            future.result()
        for tenant in names:
            made.step(tenant=tenant, **STEP).result()
    assert made.inspect(tenant=ours.TENANT).result()["weights"] == alone
