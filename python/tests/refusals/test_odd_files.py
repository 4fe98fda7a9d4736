"""Odd files, such as a FIFO or a huge one: none ends the process, blocks it or takes its memory."""

import json
import os
import shutil
import struct

import pytest

from twinkle.core import core
from twinkle.dataset import Dataset, DatasetMeta, IterableDataset, LazyDataset
from twinkle.engine import Engine
from twinkle.errors import InvalidError, NotFoundError, TwinkleError

pytestmark = pytest.mark.usefixtures("engine_built", "data_built")


def put_fifo(path):
    """The other kinds are refused at the same place: twinkle/base/file_test.cpp."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "generation_config.json", "tokenizer.json"]
)
def test_an_odd_file_in_a_models_folder_is_named(tiny_llama_dir, tmp_path, name):
    model = tmp_path / "model"
    shutil.copytree(tiny_llama_dir, model)
    put_fifo(model / name)
    with pytest.raises(TwinkleError, match=rf"{name}.* a FIFO"):
        engine = Engine(str(model))
        engine.template()


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_odd_file_in_an_adapters_folder_is_named(tmp_path, name):
    config = {"peft_type": "LORA", "r": 1, "target_modules": ["q"]}
    tensors = {
        f"base_model.model.q.lora_{half}.weight": {
            "dtype": "U8",
            "shape": [1],
            "data_offsets": [i, i + 1],
        }
        for i, half in enumerate("AB")
    }
    header = json.dumps(tensors).encode()
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + b"12"
    )
    put_fifo(tmp_path / name)
    with pytest.raises(InvalidError, match=rf"{name}.* a FIFO"):
        core().read_peft(tmp_path)


def test_a_json_file_has_a_limit_of_size(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    os.truncate(tmp_path / "adapter_config.json", 3 << 30)  # a hole
    with pytest.raises(InvalidError, match=r"adapter_config\.json has 3221225472 bytes, the limit"):
        core().read_peft(tmp_path)


@pytest.mark.parametrize("extension", ["jsonl", "json", "csv", "txt", "parquet", "arrow"])
def test_a_dataset_that_is_no_regular_file_is_named(tmp_path, extension):
    if extension in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    file = tmp_path / f"rows.{extension}"
    put_fifo(file)
    for dataset in (Dataset, LazyDataset, IterableDataset):
        with pytest.raises(InvalidError, match=r"rows\..* is a FIFO, it must be a regular file"):
            next(iter(dataset(DatasetMeta(dataset_id=str(file)))))


def test_a_dataset_that_is_a_device_is_refused():
    with pytest.raises(TwinkleError, match="/dev/null"):
        Dataset(DatasetMeta(dataset_id="/dev/null"))


def test_a_file_that_is_not_there_is_still_not_found(tmp_path):
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        core().Checkpoint(tmp_path / "none")


def test_text_of_a_gguf_that_is_no_utf8_is_an_error(tmp_path):
    def text(value):
        return struct.pack("<Q", len(value)) + value

    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    for key, value in ((b"\xff\xfe", b"a"), (b"k", b"\xff")):
        (tmp_path / "x.gguf").write_bytes(head + text(key) + struct.pack("<I", 8) + text(value))
        with pytest.raises(InvalidError, match="is not UTF-8 at byte"):
            core().gguf_metadata(tmp_path / "x.gguf")


def test_a_shape_that_numpy_cannot_hold_is_an_error(tmp_path):
    tensor = {"dtype": "F32", "shape": [0, 1 << 62], "data_offsets": [0, 0]}
    header = json.dumps({"w": tensor}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InvalidError, match=r"shape \[0, 4611686018427387904\] of F32"):
        core().Checkpoint(tmp_path / "x.safetensors")
