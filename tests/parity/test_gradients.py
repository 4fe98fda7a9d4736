"""Gradients of every weight and of every adapter in float32 equal transformers' and peft's.

Two tensors differ, relatively, by max|ours - theirs| / max|theirs|; at most 1e-4 is allowed.
"""

import json
import random

import peft
import pytest
import torch
from parity import models, ours, reference

ALL = range(models.COUNT)
TOLERANCE = 1e-4


def relative(ours, theirs):
    difference, size = (ours - theirs).abs().max().item(), theirs.abs().max().item()
    return difference / size if size else difference


def check(grads, expected):
    assert grads.keys() <= expected.keys()
    far = {}
    for name, theirs in expected.items():
        mine = grads.get(name, torch.zeros_like(theirs))  # nothing was added
        assert mine.shape == theirs.shape, name
        distance = relative(mine, theirs)
        if not distance <= TOLERANCE:
            far[name] = distance
    assert not far


@pytest.mark.parametrize("index", ALL, ids=models.name_of)
def test_every_weights_gradient_equals_transformers(index):
    case = models.case(index)
    made = ours.engine(case.directory, token_budget=case.token_budget)
    grads, loss = ours.gradients(made, case.sequences)
    model = case.reference.requires_grad_(True)
    with torch.no_grad():
        expected = reference.loss(model, case.sequences).item()
    assert loss == pytest.approx(expected, rel=1e-5)
    check(grads, reference.gradients(model, case.sequences))


def draw_lora(index):
    rng = random.Random(f"{models.SEED}/{index}/lora")
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    targets = [
        "all-linear",
        rng.sample(names, rng.randint(1, 4)),
        r".*\.(self_attn\.(q|o)|mlp\.down)_proj",
        r"model\.layers\.0\..*_proj",
        ["self_attn.v_proj", "mlp.up_proj"],
    ]
    return peft.LoraConfig(
        r=rng.choice([1, 2, 3, 8, 17]),
        lora_alpha=rng.choice([1, 8, 13, 32]),
        use_rslora=rng.random() < 0.5,
        target_modules=targets[index % len(targets)],
        task_type="CAUSAL_LM",
    )


def adapted(case, directory, config=None):
    """transformers + peft with both factors random, also written to `directory`.

    B is drawn so that alpha / rank * B A is about as large as the weight, whatever alpha and rank
    are. Updates several times the weight make a network in which transformers' own float32
    gradients are up to 1e-3 off those of the same model in float64: nothing could be told then.
    """
    config = config or draw_lora(case.index)
    torch.manual_seed(models.SEED + case.index)
    model = peft.get_peft_model(case.fresh_reference(), config)
    scale = config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=1 / (scale * config.r**0.5))
    model.save_pretrained(str(directory))
    return model


@pytest.mark.parametrize("index", ALL, ids=models.name_of)
def test_every_adapters_gradient_equals_peft(index, tmp_path):
    case = models.case(index)
    model = adapted(case, tmp_path)
    made = ours.engine(case.directory, token_budget=case.token_budget, directory=str(tmp_path))
    grads, loss = ours.gradients(made, case.sequences)
    with torch.no_grad():
        assert loss == pytest.approx(reference.loss(model, case.sequences).item(), rel=1e-5)
    expected = reference.adapter_gradients(model, case.sequences)
    assert grads.keys() == expected.keys()
    check(grads, expected)


@pytest.mark.parametrize("index", models.ONE_OF_EACH, ids=models.name_of)
def test_gradients_through_entropies_equal_peft(index, tmp_path):
    """The gradients of a loss that is linear in log-probabilities and entropies, as one with an
    entropy bonus."""
    case = models.case(index)
    model = adapted(case, tmp_path)
    made = ours.engine(case.directory, token_budget=case.token_budget, directory=str(tmp_path))
    given, total = [], 0
    for sequence in case.sequences:
        grad, of_entropy = torch.randn(2, len(sequence["labels"]))
        extras = {"grad": grad.numpy(), "entropy_grad": of_entropy.numpy()}
        plain = {name: sequence[name] for name in ("input_ids", "labels")}
        given.append({**plain, "extras": extras})
        logps, entropies = reference.scores(model, sequence)
        total = total + (logps * grad + entropies * of_entropy).sum()
    total.backward()
    result = made.forward_backward(tenant=ours.TENANT, sequences=given, loss="LinearLoss").result()
    assert result["loss"] == pytest.approx(total.item(), rel=1e-4, abs=1e-4)
    check(ours.accumulated(made), reference.named_as_ours(reference.accumulated(model)))


@pytest.mark.parametrize("index", [1, 2, 12, 23])
def test_targets_given_as_a_config_reach_the_modules_that_peft_reaches(index, tmp_path):
    case = models.case(index)
    config = draw_lora(index)
    model = peft.get_peft_model(case.fresh_reference(), config)
    model.save_pretrained(str(tmp_path))
    fields = json.loads((tmp_path / "adapter_config.json").read_text())
    made = ours.engine(case.directory, lora_json=json.dumps(fields))
    grads, _ = ours.gradients(made, case.sequences)
    assert grads.keys() == reference.adapter_gradients(model, case.sequences).keys()


def test_micro_batches_add_up_to_the_gradient_of_all_their_sequences():
    case = models.case(8)
    made = ours.engine(case.directory)
    for part in (case.sequences[:2], case.sequences[2:3]):
        ours.backward(made, part)
    ours.backward(made, case.sequences[3:])
    tensors = made.inspect(tenant=ours.TENANT, tensors=True).result()["tensors"]
    grads = {
        n.removeprefix("grad/"): torch.as_tensor(v) for n, v in tensors.items() if "grad/" in n
    }
    check(grads, reference.gradients(case.reference.requires_grad_(True), case.sequences))
