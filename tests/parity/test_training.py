"""Ten optimizer steps on GSM8K, three of SmolLM2, give the loss curve of transformers, peft and
torch.optim within 1e-3.

CI takes one drawn model of every family and rope kind, 12 of the 48; `make soak` the other 36, and
ten steps of SmolLM2.
"""

import json

import peft
import pytest
import torch
from decay import decay_groups
from parity import models, ours, reference
from parity.test_gradients import adapted

STEPS = 10
ROWS_A_STEP = 2
SHORT = 96  # tokens: SmolLM2's steps have one row each, of the first ones so short: they take long
TOLERANCE = 1e-3
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.01}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
}
EACH = [
    index if index in models.ONE_OF_EACH else pytest.param(index, marks=pytest.mark.soak)
    for index in range(models.COUNT)
]


def batches_of(rows, longest, vocab=None):
    """Features of the first rows with at most `longest` tokens; these are brought into the
    vocabulary."""

    def folded(token):
        return token if vocab is None or token == -100 else token % vocab

    fitting = [row for row in rows if len(row["input_ids"]) <= longest][: STEPS * ROWS_A_STEP]
    assert len(fitting) == STEPS * ROWS_A_STEP
    fitting = [{key: [folded(t) for t in value] for key, value in row.items()} for row in fitting]
    return [fitting[i : i + ROWS_A_STEP] for i in range(0, len(fitting), ROWS_A_STEP)]


def short_batches_of(rows):
    return [batch[:1] for batch in batches_of(rows, SHORT)]


# The drawn models take ten steps of both optimizers in CI.
STEPS_OF_SMOLLM2 = [3, pytest.param(STEPS, marks=pytest.mark.soak)]


def their_curve(model, batches, name, max_grad_norm=1.0):
    """The mean loss of every batch before its step, and the norm of its gradient."""
    kind, options = OPTIMIZERS[name]
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = kind(decay_groups(model), **options)
    losses, norms = [], []
    for batch in batches:
        loss = reference.loss(model, batch) / reference.num_tokens(batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learning, max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def our_curve(made, batches, name, max_grad_norm=1.0):
    options = json.dumps(OPTIMIZERS[name][1])
    losses, norms = [], []
    for batch in batches:
        out = ours.backward(made, batch)
        step = made.step(
            tenant=ours.TENANT, optimizer=name, options=options, max_grad_norm=max_grad_norm
        ).result()
        assert out["num_tokens"] == step["num_tokens"] == reference.num_tokens(batch)
        losses.append(out["loss"] / out["num_tokens"])
        norms.append(step["grad_norm"])
    return losses, norms


def check(mine, theirs):
    assert mine[0] == pytest.approx(theirs[0], rel=0, abs=TOLERANCE)
    assert mine[1] == pytest.approx(theirs[1], rel=TOLERANCE)


@pytest.mark.parametrize("steps", STEPS_OF_SMOLLM2)
@pytest.mark.parametrize("optimizer", ["AdamW", pytest.param("SGD", marks=pytest.mark.soak)])
def test_steps_of_smollm2_with_lora_on_all_linears(optimizer, steps, gsm8k, smollm2_dir, tmp_path):
    torch.manual_seed(models.SEED)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(models.load_reference(smollm2_dir), config)
    model.save_pretrained(str(tmp_path))
    made = ours.engine(smollm2_dir, directory=str(tmp_path))
    batches = short_batches_of(gsm8k)[:steps]
    mine = our_curve(made, batches, optimizer)
    check(mine, their_curve(model, batches, optimizer))


@pytest.mark.parametrize("steps", STEPS_OF_SMOLLM2)
def test_steps_of_all_of_smollm2s_weights(steps, gsm8k, smollm2_dir):
    """That of padding learns, as in test_smollm2.py."""
    model = models.load_reference(smollm2_dir).requires_grad_(True)
    model.model.embed_tokens.padding_idx = None
    batches = short_batches_of(gsm8k)[:steps]
    mine = our_curve(ours.engine(smollm2_dir), batches, "AdamW")
    check(mine, their_curve(model, batches, "AdamW"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("index", EACH, ids=models.name_of)
def test_steps_of_all_weights(index, optimizer, gsm8k):
    case = models.case(index)
    model = case.fresh_reference()
    batches = batches_of(gsm8k, models.MAX_POSITIONS, model.config.vocab_size)
    made = ours.engine(case.directory, token_budget=case.token_budget)
    mine = our_curve(made, batches, optimizer)
    check(mine, their_curve(model, batches, optimizer))


@pytest.mark.parametrize("index", EACH, ids=models.name_of)
def test_steps_of_an_adapter(index, gsm8k, tmp_path):
    case = models.case(index)
    model = adapted(case, tmp_path)
    batches = batches_of(gsm8k, models.MAX_POSITIONS, model.config.vocab_size)
    made = ours.engine(case.directory, token_budget=case.token_budget, directory=str(tmp_path))
    mine = our_curve(made, batches, "AdamW")
    check(mine, their_curve(model, batches, "AdamW"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("index", [0, 13, 26, 44], ids=models.name_of)
def test_weighted_rows_that_come_again_are_learned(index, optimizer):
    case = models.case(index)
    batches = [case.sequences[i % 3 : i % 3 + 3] for i in range(STEPS)]
    made = ours.engine(case.directory, token_budget=case.token_budget)
    mine = our_curve(made, batches, optimizer)
    check(mine, their_curve(case.fresh_reference(), batches, optimizer))
    assert mine[0][9] < mine[0][0]  # the same batch, three steps of its own later
