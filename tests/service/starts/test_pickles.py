"""Pickles and code in a model's folder, which would run when they are loaded: never touched."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

pytest.importorskip("tinker")
from service.message import ONES, message, train
from service.wire import Wire

LONG_AGO = 0  # an access time that the system renews when the file is read
TRAPS = ("pytorch_model.bin", "adapter_model.bin", "model.pt", "tokenizer.pkl", "modeling_tiny.py")


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (Path(self.file),)


@pytest.fixture
def trapped(tiny_llama_dir, tmp_path):
    """A copy of the model whose folder holds pickles and code, and names the code."""
    model, sprung = tmp_path / "model", tmp_path / "sprung"
    shutil.copytree(tiny_llama_dir, model)
    for name in TRAPS:
        (model / name).write_bytes(pickle.dumps(Trap(sprung)))
    (model / "modeling_tiny.py").write_text(f"open({str(sprung)!r}, 'w').close()\n")
    for name, auto in (("config", "AutoModelForCausalLM"), ("tokenizer_config", "AutoTokenizer")):
        file = model / f"{name}.json"
        code = {"auto_map": {auto: "modeling_tiny.Tiny"}}
        file.write_text(json.dumps(json.loads(file.read_text()) | code))
    for file in model.iterdir():
        os.utime(file, (LONG_AGO, file.stat().st_mtime))
    yield model
    assert not sprung.exists()


def read_of(model):
    """The files of the folder that somebody has read."""
    return {file.name for file in model.iterdir() if file.stat().st_atime != LONG_AGO}


def test_a_server_reads_no_pickle_and_no_code_of_its_models_folder_and_gives_none_away(
    trapped, start, tmp_path
):
    server = start(trapped, tmp_path / "state", "--log-level", "off")
    wire = Wire(server.url)
    run = wire.run()
    assert isinstance(wire.result(train(wire, message(run, 1, weights=ONES)).json()), bytes)
    body = {"model_id": run, "seq_id": 2, "path": "end"}
    assert "path" in wire.result(wire.ok("save_weights", body))
    for name in TRAPS:
        assert wire.send("GET", f"/hf/tiny/resolve/main/{name}").status == 404
    listed = wire.send("GET", "/hf/api/models/tiny").json()["siblings"]
    assert not {each["rfilename"] for each in listed} & set(TRAPS)
    assert server.stop() == 0
    read = read_of(trapped)
    assert read >= {"model.safetensors", "config.json", "tokenizer.json"}, "or times tell nothing"
    assert not read & set(TRAPS)


def test_a_model_whose_weights_are_pickles_alone_is_refused_by_their_name(
    trapped, twinkle, tmp_path
):
    (trapped / "model.safetensors").unlink()
    place = ("--model", trapped, "--state", tmp_path / "state")
    for more in ((), ("--check",)):
        told = twinkle("serve", *place, "--port", "0", *more)
        assert told.returncode == 1
        assert "pytorch_model.bin, a pickle, which may run code and is not read" in told.stderr
    assert not read_of(trapped) & set(TRAPS)
