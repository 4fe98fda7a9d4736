"""The script of each process of test_whole_batches.py: MODEL FOLDER. Writes {case: {"whole":
numbers that are the same on every rank, "own": this rank's part of one process's list}}."""

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np

import twinkle
from twinkle import DeviceMesh, LoraConfig
from twinkle.data_format import SamplingParams
from twinkle.loss import InfonceLoss, Loss
from twinkle.metric import CompletionRewardMetric, Metric
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

directory = sys.argv[1]
mesh = DeviceMesh.from_sizes(dp_size=int(os.environ.get("WORLD_SIZE", "1")))
# A mesh of the same processes in which data rank 1 is process 2.
other = DeviceMesh.from_sizes(dp_size=2, fsdp_size=2) if "OTHER_MESH" in os.environ else mesh
twinkle.initialize(mode="local", global_device_mesh=other)
model = TransformersModel(model_id=directory, device_mesh=mesh)
told = {}


def rows(seed, count):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        ids = rng.integers(3, 120, int(rng.integers(5, 40)))
        labels = np.append(ids[1:], -100)
        labels[: int(rng.integers(0, 4))] = -100
        out.append({"input_ids": ids, "labels": labels})
    return out


def mine(values):
    return values[mesh.get_slice(len(values))]


class Greatest(Metric):
    """As a user writes one: the greatest surprise, and how many labels there were."""

    def __init__(self, device_mesh=None, process_group=None):
        super().__init__(device_mesh, process_group)
        self.reset()

    def accumulate(self, inputs, outputs, **kwargs):
        self.surprise = max(self.surprise, float(-outputs["logps"].min()))
        self.labels += int((inputs["labels"] != -100).sum())

    def calculate(self):
        parts = self.gather_results([{"surprise": self.surprise, "labels": self.labels}])
        return {
            "surprise": max(part["surprise"] for part in parts),
            "labels": sum(part["labels"] for part in parts),
        }

    def reset(self):
        self.surprise, self.labels = 0.0, 0


class Spread(Loss):
    """A mean that no average of ranks' averages is: of the batch's own variance."""

    whole_batch = True

    def __call__(self, inputs, outputs, **kwargs):
        counts = (inputs["labels"] != -100).sum(-1).clamp(min=1)
        return (outputs["logps"].sum(-1) / counts).var()


said = []  # names of the exchanges between ranks so far
exchange = getattr(model._ranks, "_exchange", None)  # one process has none
model._ranks._exchange = lambda what, value: said.append(what) or exchange(what, value)


class Weighed:
    """A meeting, and how many bytes this rank has brought to each exchange."""

    def __init__(self, meeting):
        self._meeting, self.lengths = meeting, []

    def all_gather(self, data, place):
        self.lengths.append(len(data))
        return self._meeting.all_gather(data, place)


weighed = Weighed(getattr(model._ranks, "_meeting", None))
if model._ranks.size > 1:
    model._ranks._meeting = weighed


def exchanged(call):
    """The names of a call's exchanges between several ranks, and the bytes that this one sends."""
    before = len(said), len(weighed.lengths)
    call()
    return said[before[0] :], weighed.lengths[before[1] :]


def length_of(what, value):
    """Bytes that a rank sends in an exchange with this value."""
    return len(pickle.dumps((what, (pickle.dumps(value), None))))


def adapter(name, loss, *metrics, **options):
    model.add_adapter_to_model(name, LoraConfig(r=4, target_modules="all-linear"))
    model.set_loss(loss, adapter_name=name, **options)
    model.set_optimizer("AdamW", lr=1e-3, adapter_name=name)
    for metric in metrics:
        model.add_metric(metric, adapter_name=name)
    return name


def of(name, outputs):
    """Takes a step with the adapter and records the numbers of its case."""
    norm = model.clip_grad_and_step(adapter_name=name)
    metrics = model.calculate_metric(is_training=True, adapter_name=name)
    clocks = ("total time elapse", "speed", "tokens/s")
    metrics = {key: value for key, value in metrics.items() if key not in clocks}
    whole = [outputs["loss"], outputs["num_tokens"], norm, metrics]
    own = (
        outputs["embeddings"] if "embeddings" in outputs else [r[r != 0] for r in outputs["logps"]]
    )
    told[name] = {"whole": whole, "own": [row.tolist() for row in own]}


name = adapter("accuracy", "CrossEntropyLoss", "Accuracy", Greatest)
batch = rows(1, 7)  # uneven parts
of(name, model.forward_backward(inputs=mine(batch), adapter_name=name))

model.forward_only(inputs=mine(batch), adapter_name=name)
loss = model.calculate_loss(adapter_name=name)
told["evaluation"] = {
    "whole": [loss, model.calculate_metric(is_training=False, adapter_name=name)],
    "own": [],
}

name = adapter("policy", "GRPOLoss", "GRPOMetric", epsilon=0.2)
old = [np.full(len(row["input_ids"]), -4.0).tolist() for row in batch]
advantages = np.random.default_rng(2).normal(size=7).tolist()
given = {"old_logps": mine(old), "advantages": mine(advantages)}
of(name, model.forward_backward(inputs=mine(batch), adapter_name=name, **given))

# Pairs that lie across ranks: 3 and 3.
name = adapter("preference", "DPOLoss", "DPOMetric")
pairs = rows(3, 6)
reference = model.forward_only(inputs=mine(pairs), adapter_name=name)
model.calculate_loss(adapter_name=name, ref_outputs=reference)  # all ranks name its scorer alike
reference = model.forward_only(inputs=mine(pairs), adapter_name=name, disable_lora=True)
of(name, model.forward_backward(inputs=mine(pairs), adapter_name=name, ref_outputs=reference))

# Groups of an anchor, its positive and negatives, one of which lies across ranks: each document is
# a negative of all other anchors.
name = adapter("negatives", InfonceLoss(include_qq=True, include_dd=True))
marks = [1, 0, 1, 0, 0, 1, 0]
marked = [{**row, "labels": [mark]} for row, mark in zip(batch, marks, strict=True)]
of(name, model.forward_backward(inputs=mine(marked), adapter_name=name, task="embedding"))

name = adapter("own loss", Spread())
of(name, model.forward_backward(inputs=mine(batch), adapter_name=name))
name = adapter("function", lambda inputs, outputs: -outputs["logps"].sum() / 10)
model.forward(inputs=mine(batch), adapter_name=name)
loss = model.calculate_loss(adapter_name=name)
model.backward(adapter_name=name)
norm = model.clip_grad_and_step(adapter_name=name)
told["in three calls"] = {"whole": [loss, norm], "own": []}

prompts = [{"input_ids": [5, 6, 7]}] * 5  # equal ones draw apart
params = SamplingParams(max_tokens=12, temperature=1.0, num_samples=2, logprobs=1)
for which, sampler, name in (
    ("its own engine", TorchSampler(model_id=directory, device_mesh=mesh), ""),
    ("the model's engine", TorchSampler(model=model), "accuracy"),
):
    for call in range(2):
        responses = sampler.sample(mine(prompts), params, adapter_name=name)
        tokens = [[s.tokens for s in r.sequences] for r in responses]
        told[f"samples of {which}, call {call}"] = {"whole": [], "own": tokens}
lengths = [len(s.tokens) for r in responses for s in r.sequences]
rewards = CompletionRewardMetric()
rewards.accumulate(completion_lengths=lengths, rewards={"sum": [sum(map(sum, t)) for t in tokens]})
told["rewards"] = {"whole": rewards.calculate(), "own": []}
alone = Greatest()
alone.accumulate(
    {"labels": np.array(mine([1, -100, 3, 4]))}, {"logps": -np.array(mine([1, 2, 3, 4]))}
)
told["a metric of the script"] = {"whole": alone.calculate(), "own": []}
name = adapter("exchanges", "CrossEntropyLoss")
steps = {
    "forward": lambda: model.forward(inputs=mine(batch), adapter_name=name),
    "calculate_loss": lambda: model.calculate_loss(adapter_name=name),
    "backward": lambda: model.backward(adapter_name=name),
    "clip_grad_norm": lambda: model.clip_grad_norm(adapter_name=name),
    "step": lambda: model.step(adapter_name=name),
    "zero_grad": lambda: model.zero_grad(adapter_name=name),
    "forward_backward": lambda: model.forward_backward(inputs=mine(batch), adapter_name=name),
    "clip_grad_and_step": lambda: model.clip_grad_and_step(adapter_name=name),
    "save": lambda: model.save("saved", output_dir=sys.argv[2], adapter_name=name),
    "load": lambda: model.load("saved", output_dir=sys.argv[2], adapter_name=name),
    "get_state_dict": lambda: model.get_state_dict(adapter_name=name),
}
exchanges = {step: exchanged(call) for step, call in steps.items()}
calls = {step: what for step, (what, _) in exchanges.items()}
lengths = {step: lengths for step, (_, lengths) in exchanges.items()}
# Bytes of this rank's part of the batch, and of its scores: four bytes for each token.
scores = [np.zeros(len(row["input_ids"]), np.float32) for row in mine(batch)]
own_lengths = {
    "a batch": length_of("a batch", (mine(batch), None)),
    "a batch that learns": length_of("a batch", (mine(batch), {})),
    "its scores": length_of("its scores", [scores]),
    "its step": length_of("its step", None),
}
told["exchanges"] = {
    "whole": [],
    "own": [],
    "of": calls,
    "bytes": lengths,
    "own bytes": own_lengths,
}
Path(os.environ["TOLD"], os.environ.get("RANK", "0")).write_text(json.dumps(told))
