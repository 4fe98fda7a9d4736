"""The script of each process of test_refused_on_one_rank.py: MODEL OUT. One rank alone gives wrong
arguments, and all go on after each refusal. Writes {case: the error that this rank gets}, and the
numbers of the calls that go on."""

import json
import os
import pickle
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import twinkle
from twinkle import DeviceMesh, LoraConfig
from twinkle.core import core
from twinkle.engine import Engine, alike
from twinkle.errors import TwinkleError
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

directory, out = sys.argv[1:]
size = int(os.environ.get("WORLD_SIZE", "1"))
rank = int(os.environ.get("RANK", "0"))
mesh = DeviceMesh.from_sizes(dp_size=size)
twinkle.initialize(mode="local", global_device_mesh=mesh)
model = TransformersModel(model_id=directory)
told = {}
is_last = rank == size - 1


def refused(case, call, *args, **kwargs):
    """Records the error of the call, where there are several ranks."""
    if size == 1:
        return
    try:
        call(*args, **kwargs)
        told[case] = "taken"
    except (TwinkleError, pickle.PicklingError) as error:
        told[case] = f"{type(error).__name__}: {error}"


def mine_of(values):
    """This rank's part of a list."""
    return values[mesh.get_slice(len(values))]


def rows(ids, count=4):
    """So many rows, of which this rank gives its own."""
    return mine_of(
        [{"input_ids": [ids, 6, 7 + i], "labels": [6, 7 + i, -100]} for i in range(count)]
    )


def spoilt(ids):
    """The same, but for the last rank's last row, which no batch can hold."""
    return [*rows(ids)[:-1], {"input_ids": [[1], [2]]}] if is_last else rows(ids)


def on_last(wrong, right):
    """An argument that the last rank alone gives wrongly."""
    return wrong if is_last else right


def scaled(inputs, outputs, scale=1.0, coef=(1.0,), **kwargs):
    return -scale * sum(coef) * outputs["logps"].sum()


def rewarded(inputs, outputs, correct=(), targets=()):
    of_rows = outputs["logps"].sum(-1)
    return -(torch.tensor(correct) * of_rows).sum() - sum(targets) * of_rows.sum()


def advantaged(inputs, outputs, advantages=(), parts=()):
    of_all = sum(part["scale"].sum() for part in parts)
    return -of_all * (torch.tensor(advantages) * outputs["logps"].sum(-1)).sum()


refused("an adapter", model.add_adapter_to_model, "mine", on_last("/nowhere", LoraConfig(r=4)))
model.add_adapter_to_model("mine", LoraConfig(r=4))
model.set_optimizer("AdamW", lr=1e-2)

train = model.forward_backward
refused("a batch", train, inputs=spoilt(5))
refused("a batch's adapter", train, inputs=rows(5), adapter_name=on_last("other", "mine"))
refused("a batch's name", train, inputs=rows(5), **on_last({"advantage": [1.0]}, {}))
refused("a forward's name", model.forward_only, inputs=rows(5), **on_last({"losses": 1}, {}))
losses = [train(inputs=rows(8))["loss"]]  # not of a batch that was refused
refused("a step's options", model.step, optim_params=on_last({"rate": 1.0}, None))
refused("a clip", model.clip_grad_and_step, max_grad_norm=on_last(-1.0, 1.0))
refused("a forward", model.forward_only, inputs=spoilt(5))
long = [{"input_ids": [1] * 420_000}] if rank == 0 else rows(5)
refused("logits", model.forward_only, inputs=long, return_logits=True)

model.set_loss("GRPOLoss")
given = {"advantages": mine_of([0.5, -1.0, 2.0, 0.1])}
refused("arguments of one", train, inputs=rows(5), **(given if rank == 0 else {}))
losses.append(train(inputs=rows(5), **given)["loss"])

advantaged.row_arguments = ("advantages",)
model.set_loss(advantaged)  # equal on all ranks by chance; and tensors of another length on each
parts = [{"scale": torch.ones(2)}, {"scale": torch.ones(3)}, {"scale": torch.ones(1)}]
losses.append(train(inputs=rows(5), advantages=mine_of([0.5] * 4), parts=parts)["loss"])

model.set_loss(scaled)
refused("a number", train, inputs=rows(5), scale=1.0 + rank)
kinds = {"scale": 2.0 if rank == 0 else [1.0, 2.0, 3.0, 4.0, 5.0]}
refused("a number and a list", train, inputs=rows(5), **kinds)
coef = [0.5, 2.0]  # as many as each of two ranks has rows
refused("two numbers", train, inputs=rows(5), coef=coef)
scaled.row_arguments = ()
model.set_loss(scaled)
losses.append(train(inputs=rows(5), coef=coef)["loss"])
refused("other numbers", train, inputs=rows(5), coef=[0.5, 2.0 + rank])
refused("other arrays", train, inputs=rows(5), coef=np.array([0.5, 2.0 + rank, 1.0]))
refused("what can't be sent", train, inputs=rows(5), more=(lambda: 0) if is_last else 0)
model.forward(inputs=rows(5))
refused("a loss's adapter", model.calculate_loss, adapter_name=on_last("other", None))
refused("a later number", model.calculate_loss, **({"scale": 2.0} if rank == 0 else {}))
losses.append(model.calculate_loss(scale=2.0))
model.backward()
told["norm"] = model.clip_grad_and_step()

model.set_loss(rewarded)
refused("the same at first", train, inputs=rows(5), correct=[1.0, 0.0])
refused("longer than rows, and not named", train, inputs=rows(5), correct=[1.0, 0.0, 1.0])
rewarded.row_arguments = ("correct",)
model.set_loss(rewarded)
for correct in ([1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]):  # the same for both of two ranks
    losses.append(train(inputs=rows(5), correct=mine_of(correct))["loss"])
refused("more than rows", train, inputs=rows(5), correct=[1.0, 0.0, 1.0])
model.set_loss(scaled)
for count in (4, 6):  # rows; coef is no list of these
    losses.append(train(inputs=rows(5, count), coef=[0.5, 2.0, 1.0])["loss"])
scaled.row_arguments = ("coef",)
model.set_loss(scaled)
refused("named, and more than rows", train, inputs=rows(5), coef=[0.5, 2.0, 1.0])
losses.append(model.clip_grad_and_step())

refused("a save", model.save, on_last("../last", "last"), output_dir=out)
model.save("last", output_dir=out)
mine_alone = Path(out) / f"of rank {rank}"
shutil.copytree(Path(out) / "last", mine_alone / "last")
if is_last and size > 1:
    read = (mine_alone / "last" / "adapter_model.safetensors").read_bytes()
    spoilt_bytes = read[:-1] + bytes([read[-1] ^ 1])
    (mine_alone / "last" / "adapter_model.safetensors").write_bytes(spoilt_bytes)
here = Path.cwd()
os.chdir(mine_alone)  # one path, of another folder on each rank
refused("a load of other values", model.load, "/proc/self/cwd/last")
refused("an adapter of other values", model.add_adapter_to_model, "new", "/proc/self/cwd/last")
os.chdir(here)
refused("a load", model.load, on_last("/nowhere", "last"), output_dir=on_last(None, out))
adapter = str(Path(out) / "last")
long = [{"input_ids": [5] * 600 if is_last else [5, 6]}]
prompts = [{"input_ids": [5, 6, 7 + i]} for i in range(4)]
mine = prompts[mesh.get_slice(4)]
tokens = {}
for name, sampler, weights in (
    ("its own engine", TorchSampler(model_id=directory), {"adapter_path": adapter}),
    ("the model's engine", TorchSampler(model=model), {"adapter_name": "mine"}),
    ("the model's engine, by path", TorchSampler(model=model), {"adapter_path": adapter}),
):
    ways = {"greedy": {"temperature": 0.0}, "drawn": {}}
    if name == "its own engine":
        del ways["greedy"]  # one rank may sample this without the others
    for way, how in ways.items():
        refused(f"{way} of {name}", sampler.sample, long, {"max_tokens": 4, **how})
        wrong = {**weights, next(iter(weights)): "/nowhere"}
        refused(f"whose, {way} of {name}", sampler.sample, mine, how, **on_last(wrong, weights))
        unknown = on_last({"max_token": 4}, {"max_tokens": 4})
        refused(f"a name, {way} of {name}", sampler.sample, mine, {**how, **unknown}, **weights)
        responses = sampler.sample(mine, {"max_tokens": 6, **how}, **weights)
        tokens[f"{way} of {name}"] = [r.sequences[0].tokens for r in responses]

fsdp = DeviceMesh.from_sizes(fsdp_size=size)
refused("no model", Engine, on_last("/nowhere", directory), device_mesh=mesh)
refused("a precision", Engine, directory, on_last("no", "bf16"), device_mesh=mesh)
kept = {"gathered_bytes": on_last(1 << 30, 0)}
refused("gathered_bytes", Engine, directory, device_mesh=fsdp, **kept)
refused("a mesh", Engine, directory, device_mesh=on_last(fsdp, mesh))
other = Path(out) / "other"
weights = other / "model.safetensors"
if is_last and size > 1:
    shutil.copytree(directory, other)
    read = weights.read_bytes()
    weights.write_bytes(read[:-1] + bytes([read[-1] ^ 1]))
refused("weights", Engine, on_last(other, directory), device_mesh=mesh)
if is_last and size > 1:
    weights.write_bytes(read)
    ends = other / "generation_config.json"
    ends.write_text(json.dumps({"eos_token_id": [1, 2, 3, 4]}))
refused("ends of texts", Engine, on_last(other, directory), device_mesh=mesh)
found = json.loads(core().arithmetic("bf16", "cpu", True))
for what, name in (("arithmetic", "products"), ("instructions", "instructions")):
    of_another = {**found, name: "those of another machine"}
    with mock.patch.object(alike, "core") as patched:
        patched().digest_of_files = patched().digest_of_texts = core().digest_of_files
        patched().arithmetic.return_value = json.dumps(on_last(of_another, found))
        refused(what, Engine, directory, device_mesh=mesh)
with mock.patch.object(alike, "version", lambda _: on_last("9.9", "1.1")):
    refused("torch", Engine, directory, device_mesh=mesh)
with mock.patch.object(alike, "__version__", on_last("9.9", "1.1")):
    refused("twinkle", Engine, directory, device_mesh=mesh)
engine = Engine(directory, device_mesh=mesh)
refused("a tenant", engine.tenant, "engine's", LoraConfig(r=4), weight=on_last(0.0, 1.0))
tenant = engine.tenant("engine's", LoraConfig(r=4))
refused("a tenant's batch", tenant.forward_backward, spoilt(5))
refused("a tenant's rows", tenant.forward, spoilt(5))
refused("a tenant's prompts", tenant.sample, long, {"max_tokens": 4, "temperature": 0.0})
losses.append(tenant.forward_backward(rows(8)).result()["loss"])
refused("a tenant's step", tenant.step, on_last("AdamX", "AdamW"))
refused("a tenant's save", tenant.save, on_last("", out))
tokens["a tenant"] = [
    r.sequences[0].tokens for r in tenant.sample(mine, {"max_tokens": 6}).result()
]
told |= {"losses": losses, "tokens": tokens}
Path(os.environ["TOLD"], str(rank)).write_text(json.dumps(told))
