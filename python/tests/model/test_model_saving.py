"""Saving, resuming and uploading, over a fake engine."""

import json
import sys
from pathlib import Path

import pytest
import torch
from features import A

from twinkle import InvalidError, LoraConfig, NotFoundError
from twinkle.hub import models
from twinkle.model import TransformersModel


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "a/../../b", "/tmp/x", 5])
def test_names_that_leave_output_dir_are_refused(model, tmp_path, name):
    for call in (model.save, model.load):
        with pytest.raises(InvalidError, match=r"name is .*must"):
            call(name, output_dir=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists() and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"output_dir": 5}, "output_dir is 5, it must be a path"),
        ({"consumed_train_samples": 1.5}, "consumed_train_samples is 1.5, it must be an integer"),
        ({"consumed_train_samples": -1}, "consumed_train_samples is -1, .* at least 0"),
        ({"max_shard_size": 0}, "max_shard_size is 0, it must be bytes of at least 1, or a text"),
        ({"max_shard_size": "5"}, "max_shard_size is '5', it must be .* such as '500MB'"),
        ({"max_shard_size": "0MB"}, "max_shard_size is '0MB', it must be"),
        ({"max_shard_size": "-1GB"}, "max_shard_size is '-1GB', it must be"),
        ({"max_shard_size": "9999999999TB"}, "max_shard_size is '9999999999TB', it must be"),
    ],
)
def test_wrong_arguments_of_save_are_named(model, arguments, text):
    with pytest.raises(InvalidError, match=text):
        model.save("x", **arguments)


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [(None, 0), (1, 1), ("2GB", 2 * 10**9), ("1.5 MiB", 1536 * 1024), ("10kb", 10_000)],
)
def test_sizes_of_files_are_bytes_or_texts_as_hugging_face_writes_them(
    model, tmp_path, size, bytes_
):
    model.save("x", output_dir=str(tmp_path), max_shard_size=size)
    assert model.engine.calls[-1] == ("save", bytes_)


def test_a_token_goes_to_the_hub(model, tmp_path, monkeypatch):
    asked = []

    def snapshot(repo_id, **options):
        asked.append((repo_id, options["token"]))
        return model.save("fetched", output_dir=str(tmp_path))

    monkeypatch.setattr(models, "snapshot", snapshot)
    model.load("hf://me/private", token="secret")
    assert asked == [("hf://me/private", "secret")]
    assert model.engine.calls[-1] == ("load", str(tmp_path / "fetched"))
    with pytest.raises(InvalidError, match="token is 5, it must be a text"):
        model.load("hf://me/private", token=5)


def _extra(**fields):
    return json.dumps({"checkpoint_version": 1, "training": {}, "extra": json.dumps(fields)})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "trainer_state.json: it is not JSON"),
        (b"\xff\xfe\x00", "trainer_state.json: it is not JSON"),
        ("[1]", "trainer_state.json: it is no object but list"),
        ('{"extra": 5}', "extra is 5, it must be a text"),
        ('{"extra": "{"}', "extra: it is not JSON"),
        ('{"extra": "[]"}', "extra: it is no object but list"),
        (_extra(cur_step="4"), "extra: cur_step is '4', it must be an integer of at least 0"),
        (_extra(iters=-1), "extra: iters is -1, it must be an integer of at least 0"),
        (_extra(lr_step=None), "extra: lr_step is None"),
        (_extra(accumulated=[1]), r"extra: accumulated is \[1\]"),
        (_extra(gradient_accumulation_steps=0), "gradient_accumulation_steps is 0, .* at least 1"),
        (_extra(consumed_train_samples=2.5), "consumed_train_samples is 2.5"),
    ],
)
def test_a_broken_training_state_is_named_before_anything_changes(model, tmp_path, content, text):
    model.forward_backward(inputs=[A])
    directory = Path(model.save("x", output_dir=str(tmp_path), save_optimizer=True))
    content = content if isinstance(content, bytes) else content.encode()
    (directory / "trainer_state.json").write_bytes(content)
    before = (model._group().state(0), len(model.engine.calls))
    for call in (
        lambda: model.resume_from_checkpoint(directory),
        lambda: model.resume_from_checkpoint(directory, resume_only_model=True),
        lambda: model.load(directory, load_optimizer=True),
    ):
        with pytest.raises(InvalidError, match=text):
            call()
    assert (model._group().state(0), len(model.engine.calls)) == before
    model.load(directory)  # it does not need the file
    with pytest.raises(InvalidError, match="checkpoint_dir is None, it must be a path"):
        model.resume_from_checkpoint(None)


def test_saving_and_resuming_keeps_the_counters(fake_core, tmp_path):
    model = TransformersModel(model_id=str(tmp_path))
    model.add_adapter_to_model("default", LoraConfig(), gradient_accumulation_steps=2)
    model.set_lr_scheduler("LinearLR")
    for _ in range(4):
        model.forward_backward(inputs=[A])
        model.clip_grad_and_step()
    directory = model.save(
        output_dir=str(tmp_path / "out"), save_optimizer=True, consumed_train_samples=4
    )
    assert directory == str(tmp_path / "out" / "checkpoint-step-4")
    assert model.save("x", output_dir=str(tmp_path), interval=3) is None
    other = TransformersModel(model_id=str(tmp_path))
    other.add_adapter_to_model("default", LoraConfig(), gradient_accumulation_steps=2)
    other.set_lr_scheduler("LinearLR")
    assert other.resume_from_checkpoint(directory) == {
        "cur_step": 4,
        "consumed_train_samples": 4,
        "gradient_accumulation_steps": 2,
    }
    group = other._group()
    assert (group.iters, group.lr_step, group.lr) == (2, 2, model._group().lr)
    torch.testing.assert_close(other.get_state_dict(), model.get_state_dict())
    with pytest.raises(NotFoundError, match="checkpoint_dir nowhere does not exist"):
        other.resume_from_checkpoint("nowhere")
    with pytest.raises(NotFoundError, match="checkpoint_dir nowhere does not exist"):
        other.upload_to_hub("nowhere", "hf://me/x")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda m: m.set_optimizer("SGD", lr=0.1),
            "optimizer is 'SGD', but the checkpoint was saved with 'AdamW': call set_optimizer as",
        ),
        (
            lambda m: m.set_lr_scheduler("MultiStepLR", milestones=[1]),
            "scheduler is 'MultiStepLR', but .* with 'LinearLR': call set_lr_scheduler as",
        ),
    ],
)
def test_another_optimizer_or_schedule_is_named_before_anything_changes(
    model, tmp_path, change, text
):
    model.set_lr_scheduler("LinearLR")
    model.forward_backward(inputs=[A])
    model.clip_grad_and_step()
    path = model.save("x", output_dir=str(tmp_path), save_optimizer=True)
    change(model)
    before = (model._group().state(0), len(model.engine.calls))
    for call in (
        lambda: model.resume_from_checkpoint(path),
        lambda: model.load(path, load_optimizer=True),
    ):
        with pytest.raises(InvalidError, match=text):
            call()
    assert (model._group().state(0), len(model.engine.calls)) == before
    model.load(path)
    model.resume_from_checkpoint(path, resume_only_model=True)  # weights go with any


def test_uploading_without_the_hubs_package_says_how_to_get_it(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ImportError, match="pip install modelscope; a local directory needs no"):
        model.upload_to_hub(str(tmp_path), "ms://me/x")
