"""What people get wrong with models, adapters, batches and data: each has its message, and leaves
the base's weights, adapters, gradients, optimizer, counters and every file as they were."""

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


def _cut(directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:20000])


def _without_template(directory):
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.pop("chat_template", None)
    file.write_text(json.dumps(config))


def _nan(directory):
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})


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
    "none": lambda d: (d / "model.safetensors").unlink(),
    "cut": _cut,
    "shape": _set(intermediate_size=96),
    "nan": _nan,
    "mamba": _set(model_type="mamba"),
    "rope": _set(rope_scaling={"rope_type": "longrope"}),
    "logits": _set(logit_scale=0.5),
    "plain": _without_template,
    "wide": _adapter(_wider),
}
TALK = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
ROWS = {"without.jsonl": TALK + '{"text": "x"}\n', "broken.jsonl": TALK * 2 + '{"messages": [}\n'}
CASES = {
    "missing safetensors": (_opened("none"), "holds no weights"),
    "truncated safetensors": (
        _opened("cut"), "ends at byte .* but the file holds only .*: it is truncated, fetch it"),
    "shape mismatch": (_opened("shape"), r"has shape \[.*config.json asks for \["),
    "weights that are not finite": (_opened("nan"), "model.norm.weight .* holds NaN"),
    "unknown architecture": (_opened("mamba"), "model_type 'mamba' is not known; known: "),
    "unknown rope kind": (
        _opened("rope"),
        "rope kind 'longrope' is not known; known: default, dynamic, linear, yarn, llama3"),
    "unknown option": (_opened("logits"), "config field 'logit_scale' is "),
    "a tokenizer without a chat template": (
        lambda w: Template(str(w.folder / "plain")).encode(
            {"messages": [{"role": "user", "content": "a"}]}), "has no chat template"),
    "an adapter of another base model, loaded": (
        lambda w: w.model.load(str(w.folder / "wide"), adapter_name="a"),
        "is it of another base model"),
    "an adapter of another base model, added": (
        lambda w: w.model.add_adapter_to_model("c", str(w.folder / "wide")),
        "is it of another base model"),
    "a target module that matches nothing": (
        lambda w: w.model.add_adapter_to_model("c", LoraConfig(target_modules=["query"])),
        "target module 'query' matches nothing; there is: q_proj"),
    "rank 0": (
        lambda w: w.model.add_adapter_to_model("c", {"r": 0}), "rank is 0, it must be at least 1"),
    "an empty batch": (
        lambda w: w.model.forward_backward(inputs=[], adapter_name="a"), "the batch is empty"),
    "a sequence beyond the model's length": (
        lambda w: w.train(input_ids=[5] * 513, labels=[5] * 513),
        "513 tokens, the model's max_position_embeddings is 512; truncate it"),
    "a token outside the vocabulary": (
        lambda w: w.train(input_ids=[5, 6, 7, 99999]), "token 99999 at position 3 is outside"),
    "a label outside the vocabulary": (
        lambda w: w.train(labels=[6, 99999, 8, -100]), "label 99999 at position 1 is outside"),
    "a label that is negative": (
        lambda w: w.train(labels=[6, -1, 8, -100]), "label -1 at position 1 is outside"),
    "no label at all": (
        lambda w: w.train(labels=[-100] * 4), "the batch has no label to learn from"),
    "a loss in Python that is NaN": (_nan_loss, "is nan, nothing was accumulated"),
    "a loss of the engine that is NaN": (
        lambda w: w.train(loss_scale=[1.0, np.nan, 1.0, 1.0]), "not finite .* nothing was changed"),
    "a loss_scale whose gradient overflows": (
        lambda w: w.train(loss_scale=[3e38] * 4), "not finite .* nothing was changed"),
    "a row without messages": (
        lambda w: _encoded(w, "without.jsonl"), r"without\.jsonl line 2: .*'messages' is missing"),
    "a broken JSON line": (
        lambda w: _encoded(w, "broken.jsonl"), r"broken\.jsonl line 3 column 15"),
    "a learning rate beyond float32": (
        lambda w: w.model.step({"lr": 1e39}, adapter_name="a"),
        r"lr of AdamW is 1e\+39, it must be finite in float32, at most 3.40282e\+38"),
    "a learning rate beyond float32, set": (
        lambda w: w.model.set_optimizer("SGD", adapter_name="a", lr=1e39), r"lr of SGD is 1e\+39"),
    "a checkpoint that is not there": (
        lambda w: w.model.load("gone", str(w.folder), adapter_name="a"),
        "gone' is neither a path here nor an id of the form owner/name"),
    "a checkpoint without an adapter": (
        lambda w: w.model.load("none", str(w.folder), adapter_name="a"),
        r"cannot open .*none/adapter_config\.json$"),
    "a save of an adapter that is not there": (
        lambda w: w.model.save("none", str(w.folder), adapter_name="nobody"),
        "there is no adapter 'nobody'; there are 'a', 'b': pass adapter_name"),
    "a save over a file": (
        lambda w: w.model.save("without.jsonl", str(w.folder), adapter_name="a"),
        r"without\.jsonl is a file; name a directory"),
    "a save below a file": (
        lambda w: w.model.save("without.jsonl/x", str(w.folder), adapter_name="a"),
        r"directory .*/x is below the file .*without\.jsonl; name a directory"),
    "a save under too long a name": (
        lambda w: w.model.save("n" * 300, str(w.folder), adapter_name="a"),
        "model: name is 'n+...n+', a name of it has 300 bytes, it must have at most 255; short"),
    "a save under a name that leaves no room beside it": (
        lambda w: w.model.save("n" * 240, str(w.folder), adapter_name="a"),
        "engine: save: directory .* has a name of 240 bytes, it must have at most 233; shorten it"),
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
        lambda: (other.folder / "none/config.json").write_text("{}"),
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
