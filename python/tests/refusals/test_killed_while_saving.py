"""A save that is killed or runs out of disk leaves the old checkpoint, whole, or the new one."""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from parallel.forks import Process

import twinkle
from twinkle.model import TransformersModel

pytestmark = pytest.mark.usefixtures("engine_built")

# Saves version 1, 2, ... over each other, and writes each number once it is saved.
SAVER = """
import sys
import twinkle
from twinkle.model import TransformersModel

model = TransformersModel(model_id=sys.argv[1], mixed_precision="no")
model.add_adapter_to_model("default", twinkle.LoraConfig(r=4, target_modules="all-linear"))
model.set_optimizer("AdamW", lr=0.01)
batch = [{"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, -100]}]
for version in range(1, 10**6):
    model.forward_backward(inputs=batch)
    model.clip_grad_and_step()
    model.save("run", sys.argv[2], save_optimizer=True, consumed_train_samples=version)
    print(version, flush=True)
"""


@pytest.fixture(scope="module")
def saver(tmp_path_factory):
    script = tmp_path_factory.mktemp("saver") / "saver.py"
    script.write_text(SAVER)
    return script


def _killed(saver, directory, folder, delay_s):
    """The last version that a killed process said it had saved."""
    process = Process(saver, directory, folder)
    try:
        first = process.wait_for("\n")
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.end(60)
        return int((process.rest().split() or [first])[-1])
    finally:
        process.stop()


def _check(directory, folder, said):
    """The checkpoint loads whole, and is the version that was said, or the next."""
    model = TransformersModel(model_id=directory, mixed_precision="no")
    model.add_adapter_to_model("default", twinkle.LoraConfig(r=4, target_modules="all-linear"))
    state = model.resume_from_checkpoint(str(folder / "run"))
    version = state["consumed_train_samples"]
    assert version in (said, said + 1)
    assert state["cur_step"] == version
    inspected = model.engine.inspect(tenant=model._group().tenant).result()
    assert inspected["step"] == version, "weights, optimizer and counters are of one save"
    model.save("run", str(folder), save_optimizer=True)  # sweeps what the dead one left
    assert [entry.name for entry in folder.iterdir()] == ["run"]


def _kill_often(saver, directory, folder, times, seed):
    drawn = random.Random(seed)
    for _ in range(times):
        _check(directory, folder, _killed(saver, directory, folder, drawn.uniform(0, 0.15)))


def test_a_checkpoint_survives_kills_at_random_moments(saver, tiny_llama_dir, tmp_path):
    _kill_often(saver, tiny_llama_dir, tmp_path, times=3, seed=1)


@pytest.mark.soak
def test_a_checkpoint_survives_a_hundred_kills(saver, tiny_llama_dir, tmp_path):
    _kill_often(saver, tiny_llama_dir, tmp_path, times=100, seed=2)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 600 KiB; skips without the right to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _bytes(folder):
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_a_full_disk_keeps_the_old_checkpoint_and_says_so(tiny_llama_dir, small_disk):
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.add_adapter_to_model("default", twinkle.LoraConfig(r=2))
    batch = [{"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, -100]}]
    model.forward_backward(inputs=batch)
    model.clip_grad_and_step()
    model.save("run", str(small_disk), save_optimizer=True)
    model.forward_backward(inputs=batch)
    filler = Path(small_disk) / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    before, tenant = _bytes(small_disk), model._group().tenant
    state = model.engine.inspect(tenant=tenant).result()
    with pytest.raises(twinkle.TwinkleError, match="No space left on device"):
        model.save("run", str(small_disk), save_optimizer=True)
    assert _bytes(small_disk) == before
    assert model.engine.inspect(tenant=tenant).result() == state
    filler.unlink()
    model.save("run", str(small_disk), save_optimizer=True)
    assert _bytes(small_disk) != before
