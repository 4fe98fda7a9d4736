"""Ten optimizer steps give the loss curve of transformers, peft and torch.optim within 1e-3."""

import json

import peft
import pytest
import torch
from parity import models, ours, reference

STEPS = 10
ROWS_A_STEP = 2
LONGEST = 80  # tokens of a row; what is longer is cut, for the time it takes
TOLERANCE = 1e-3
OPTIMIZERS = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.01}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
}


@pytest.fixture(scope="module")
def gsm8k(data_dir, smollm2_tokenizer):
    """Batches of the first rows; the answer is scored."""
    batches = []
    with (data_dir / "gsm8k_train.jsonl").open() as lines:
        rows = [json.loads(next(lines)) for _ in range(STEPS * ROWS_A_STEP)]
    for row in rows:
        prompt = smollm2_tokenizer(row["question"] + "\n")["input_ids"][: LONGEST // 2]
        reply = smollm2_tokenizer(row["answer"])["input_ids"][: LONGEST - len(prompt)]
        ids = prompt + reply
        sequence = {"input_ids": ids[:-1], "labels": ([-100] * len(prompt) + reply)[1:]}
        if not batches or len(batches[-1]) == ROWS_A_STEP:
            batches.append([])
        batches[-1].append(sequence)
    return batches


def their_curve(model, batches, name, max_grad_norm=1.0):
    """The mean loss of every batch before its step, and the norm of its gradient."""
    kind, options = OPTIMIZERS[name]
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    plain = [p for n, p in named if p.dim() > 1]
    bare = [p for n, p in named if p.dim() == 1]  # norms and biases do not decay
    optimizer = kind([{"params": plain}, {"params": bare, "weight_decay": 0}], **options)
    losses, norms = [], []
    for batch in batches:
        loss = reference.loss(model, batch) / reference.num_tokens(batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in named], max_grad_norm)
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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_on_gsm8k_with_lora(optimizer, gsm8k, smollm2_dir, tmp_path):
    torch.manual_seed(models.SEED)
    config = peft.LoraConfig(
        r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(models.load_reference(smollm2_dir), config)
    model.save_pretrained(str(tmp_path))
    made = ours.engine(smollm2_dir, directory=str(tmp_path))
    mine = our_curve(made, gsm8k, optimizer)
    check(mine, their_curve(model, gsm8k, optimizer))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("index", [0, 13, 26, 44], ids=models.name_of)
def test_ten_steps_of_all_weights(index, optimizer):
    case = models.case(index)
    batches = [case.sequences[i % 3 : i % 3 + 3] for i in range(STEPS)]
    made = ours.engine(case.directory, token_budget=case.token_budget)
    mine = our_curve(made, batches, optimizer)
    check(mine, their_curve(case.fresh_reference(), batches, optimizer))
    assert mine[0][9] < mine[0][0]  # the same batch, three steps of its own later
