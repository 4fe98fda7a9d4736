"""SmolLM2 on two processes, beside transformers, peft and torch's DDP on two: the same curves,
within the tolerance of test_training.py."""

import json

import peft
import pytest
import torch
from parallel.processes import together
from parity import models
from parity.test_training import SHORT, TOLERANCE

STEPS, ROWS = 3, 3  # an odd number: the ranks' parts differ


def test_the_loss_curve_is_that_of_transformers_and_ddp(gsm8k, smollm2_dir, tmp_path):
    torch.manual_seed(models.SEED)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(models.load_reference(smollm2_dir), config)
    model.save_pretrained(str(tmp_path / "adapter"))
    del model
    rows = [row for row in gsm8k if len(row["input_ids"]) <= SHORT][: STEPS * ROWS]
    batches = [rows[i : i + ROWS] for i in range(0, len(rows), ROWS)]
    (tmp_path / "batches.json").write_text(json.dumps(batches))
    arguments = smollm2_dir, tmp_path / "adapter", tmp_path / "batches.json"
    told = together(2, "ddp.py", *arguments, imports=("peft",))
    for theirs, ours in told:
        assert len(ours[0]) == STEPS and ours == told[0][1]
        assert ours[0] == pytest.approx(theirs[0], rel=0, abs=TOLERANCE)
        assert ours[1] == pytest.approx(theirs[1], rel=TOLERANCE)
