"""The script of each process of parity/test_ddp.py: MODEL ADAPTER BATCHES.json. It trains the
adapter with transformers, peft and torch's DDP, and then with TransformersModel, and tells [losses,
norms] of each."""

import json
import os
import sys
from pathlib import Path

import peft
import torch
import torch.distributed as dist
from parity import models

import twinkle
from twinkle import DeviceMesh
from twinkle.model import TransformersModel

directory, adapter, file = sys.argv[1:]
batches = json.loads(Path(file).read_text())
mesh = DeviceMesh.from_sizes(dp_size=int(os.environ["WORLD_SIZE"]))
twinkle.initialize(mode="local", global_device_mesh=mesh)
LR, WEIGHT_DECAY = 1e-3, 0.01


def padded(rows, name, value):
    rows = [torch.tensor(row[name]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def theirs():
    dist.init_process_group("gloo")
    model = peft.PeftModel.from_pretrained(
        models.load_reference(directory), adapter, is_trainable=True
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=WEIGHT_DECAY)
    losses, norms = [], []
    for batch in batches:
        total = sum(label != -100 for row in batch for label in row["labels"])
        mine = batch[mesh.get_slice(len(batch))]
        mask = padded([{"ones": [1] * len(row["labels"])} for row in mine], "ones", 0)
        logits = model(input_ids=padded(mine, "input_ids", 0), attention_mask=mask).logits
        labels = padded(mine, "labels", -100).flatten()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum")
        (loss * dist.get_world_size() / total).backward()  # DDP's gradient is the ranks' mean
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
        of_all = loss.detach() / total
        dist.all_reduce(of_all)
        losses.append(of_all.item())
    dist.destroy_process_group()
    return losses, norms


def ours():
    model = TransformersModel(model_id=directory, mixed_precision="no")
    model.add_adapter_to_model("default", adapter)
    model.set_optimizer("AdamW", lr=LR, weight_decay=WEIGHT_DECAY)
    losses, norms = [], []
    for batch in batches:
        model.forward_backward(inputs=batch[mesh.get_slice(len(batch))])
        norms.append(model.clip_grad_and_step(max_grad_norm=1.0))
        losses.append(model.calculate_metric(is_training=True)["loss"])
    return losses, norms


told = [theirs(), ours()]
Path(os.environ["TOLD"], os.environ.get("RANK", "0")).write_text(json.dumps(told))
