"""Mistakes with models, adapters, batches and data: every entry point raises an error and changes
nothing: weights, adapters, gradients, optimizer, counters and every file stay as they were. The
core's tests have the other texts: twinkle/engine/bad_input_test.cpp."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from twinkle import LoraConfig
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.errors import TwinkleError
from twinkle.loss import CrossEntropyLoss
from twinkle.model import TransformersModel
from twinkle.template import Template

pytestmark = pytest.mark.usefixtures("engine_built", "data_built")

FEATURE = {"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, -100]}


class World:
    """A model in training, two adapters, a checkpoint of one, and a folder with all that is wrong,
    made before any of it is tried."""

    def __init__(self, directory, folder):
        self.directory, self.folder = Path(directory), folder
        self.model = TransformersModel(model_id=directory, mixed_precision="no")
        self.model.frozen_tenant()
        for name in ("a", "b"):
            self.model.add_adapter_to_model(name, LoraConfig(r=2))
            for _ in range(2):
                self.model.set_optimizer("AdamW", adapter_name=name, lr=0.01)
                self.model.forward_backward(inputs=[FEATURE], adapter_name=name)
                self.model.clip_grad_and_step(adapter_name=name)
            self.model.forward_backward(inputs=[FEATURE], adapter_name=name)
        self.model.save("good", str(folder), save_optimizer=True, adapter_name="a")
        for name, spoil in SPOILT.items():
            shutil.copytree(self.directory, folder / name)
            spoil(folder / name)
        for name, text in ROWS.items():
            (folder / name).write_text(text)

    def train(self, **feature):
        self.model.forward_backward(inputs=[{**FEATURE, **feature}], adapter_name="a")

    def state(self):
        """Checksums of the base's weights and of the adapters with gradients and optimizer, what
        the loop counts and was set to, and every file."""
        model = self.model
        tenants = [model.frozen_tenant(), *(model._group(name).tenant for name in ("a", "b"))]
        states = [model.engine.inspect(tenant=tenant).result() for tenant in tenants]
        assert all(state["weights"] for state in states)
        groups = [model._group(name) for name in ("a", "b")]
        loop = json.dumps([[group.state(0), group.options] for group in groups])
        files = {
            file: file.read_bytes()
            for root in (self.folder, self.directory)
            for file in sorted(root.rglob("*"))
            if file.is_file()
        }
        return states, loop, files


@pytest.fixture(scope="module")
def world(tiny_llama_dir, tmp_path_factory):
    return World(tiny_llama_dir, tmp_path_factory.mktemp("bad"))


def _set(**fields):
    def spoil(directory):
        file = directory / "config.json"
        config = json.loads(file.read_text())
        config.pop("rope_parameters", None)
        file.write_text(json.dumps({**config, **fields}))

    return spoil


def _opened(name):
    return lambda w: TransformersModel(model_id=str(w.folder / name))


def _adapter(change):
    """The checkpoint's adapter, changed."""

    def spoil(directory):
        from safetensors.torch import load_file, save_file

        for file in directory.iterdir():
            file.unlink()
        for file in (directory.parent / "good").iterdir():
            shutil.copy(file, directory)
        file = directory / "adapter_model.safetensors"
        save_file({name: change(name, t) for name, t in load_file(file).items()}, file)

    return spoil


def _wider(name, tensor):
    """As of a model with twice the width."""
    return torch.cat([tensor, tensor], dim=1 if "lora_A" in name else 0).contiguous()


def _encoded(w, name):
    dataset = Dataset(DatasetMeta(str(w.folder / name)))
    dataset.set_template(Template(str(w.directory)))
    dataset.encode()


def _nan_loss(w):
    w.model.set_loss(lambda inputs, outputs: outputs["logps"].sum() * torch.nan, adapter_name="a")
    try:
        w.train()
    finally:
        w.model.set_loss(CrossEntropyLoss(), adapter_name="a")


# Copies of the model's directory, spoilt.
SPOILT = {
    "shape": _set(intermediate_size=96),
    "wide": _adapter(_wider),
}
TALK = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
ROWS = {"rows.jsonl": TALK, "broken.jsonl": TALK * 2 + '{"messages": [}\n'}
CASES = {
    "shape mismatch": (_opened("shape"), r"has shape \[.*config.json asks for \["),
    "an adapter of another base model, loaded": (
        lambda w: w.model.load(str(w.folder / "wide"), adapter_name="a"),
        "is it of another base model"),
    "an adapter of another base model, added": (
        lambda w: w.model.add_adapter_to_model("c", str(w.folder / "wide")),
        "is it of another base model"),
    "a token outside the vocabulary": (
        lambda w: w.train(input_ids=[5, 6, 7, 99999]), "token 99999 at position 3 is outside"),
    "a loss in Python that is NaN": (_nan_loss, "is nan, nothing was accumulated"),
    "a loss of the engine that is NaN": (
        lambda w: w.train(loss_scale=[1.0, np.nan, 1.0, 1.0]), "not finite .* nothing was changed"),
    "a broken JSON line": (
        lambda w: _encoded(w, "broken.jsonl"), r"broken\.jsonl line 3 column 15"),
    "a learning rate beyond float32": (
        lambda w: w.model.step({"lr": 1e39}, adapter_name="a"),
        r"lr of AdamW is 1e\+39, it must be finite in float32, at most 3.40282e\+38"),
    "a learning rate beyond float32, set": (
        lambda w: w.model.set_optimizer("SGD", adapter_name="a", lr=1e39), r"lr of SGD is 1e\+39"),
    "a save over a file": (
        lambda w: w.model.save("rows.jsonl", str(w.folder), adapter_name="a"),
        r"rows\.jsonl is a file; name a directory"),
    "a save under too long a name": (
        lambda w: w.model.save("n" * 300, str(w.folder), adapter_name="a"),
        "model: name is 'n+...n+', a name of it has 300 bytes, it must have at most 255; short"),
    "a save under too long a path": (
        lambda w: w.model.save("x", "/n" * 2100, adapter_name="a"),
        "output_dir is '/n/.*', the whole of it has 4200 bytes, it must have at most 4095; sho"),
    "a load of too long a name": (
        lambda w: w.model.load("n" * 300, str(w.folder), adapter_name="a"),
        "model: name is 'n+...n+', a name of it has 300 bytes"),
    "a resumption from too long a name": (
        lambda w: w.model.resume_from_checkpoint("n" * 300, adapter_name="a"),
        "model: checkpoint_dir is 'n+...n+', a name of it has 300 bytes"),
    "a model of too long a name": (
        lambda w: TransformersModel(model_id="n" * 300),
        "model: model_id is 'n+...n+', a name of it has 300 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named_and_changes_nothing(world, name):
    run, text = CASES[name]
    before = world.state()
    with pytest.raises(TwinkleError, match=text):
        run(world)
    assert world.state() == before


def test_a_change_of_any_part_would_be_seen(world, tmp_path_factory):
    other = World(world.directory, tmp_path_factory.mktemp("other"))
    model, seen = other.model, [other.state()]
    for change in (
        lambda: model.forward_backward(inputs=[FEATURE], adapter_name="b"),  # gradients, loop
        lambda: model.clip_grad_and_step(adapter_name="b"),  # weights, optimizer
        lambda: model.set_optimizer("AdamW", adapter_name="a", lr=0.02),
        lambda: (other.folder / "shape/config.json").write_text("{}"),
        (other.folder / "left.tmp").touch,
    ):
        change()
        assert other.state() not in seen
        seen.append(other.state())


def test_a_training_goes_on_after_all_of_it(world):
    model = world.model
    before = model.engine.inspect(tenant=model._group("a").tenant).result()
    model.clip_grad_and_step(adapter_name="a")
    after = model.engine.inspect(tenant=model._group("a").tenant).result()
    assert after["weights"] != before["weights"] and after["step"] == before["step"] + 1
