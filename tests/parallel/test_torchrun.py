"""Several processes against one: the same bits; and how they end when one of them is gone."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("script.py")
STEPS = 10


def environment(**more):
    paths = os.pathsep.join(map(str, sys.path))
    return {
        **os.environ,
        "TWINKLE_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": paths,
    } | more


def run(command, **more):
    done = subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]


def sha256(folder):
    return hashlib.sha256((folder / "last" / "adapter_model.safetensors").read_bytes()).hexdigest()


def run_on(size, model, out, *arguments):
    """What each of `size` processes printed of the script."""
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={size}", "--standalone"]
    launcher = torchrun if size > 1 else []
    return run([sys.executable, *launcher, str(SCRIPT), str(model), str(out), *map(str, arguments)])


@pytest.mark.parametrize("size", [2, 4])
def test_torchrun_gives_every_process_the_bits_of_one(size, tiny_llama_dir, tmp_path):
    one, several = tmp_path / "one", tmp_path / "several"
    alone = run_on(1, tiny_llama_dir, one, STEPS)
    assert run_on(size, tiny_llama_dir, several, STEPS) == alone * size
    assert sha256(several) == sha256(one)


def test_what_two_processes_saved_one_and_four_go_on_with(tiny_llama_dir, tmp_path):
    whole = tmp_path / "whole"
    told = run_on(1, tiny_llama_dir, whole, 9)[0]
    # Three of nine steps each, from what the others have left: steps in the middle of a batch of
    # two among them.
    folder = None
    for start, size in ((0, 2), (3, 1), (6, 4)):
        out = tmp_path / f"on-{size}"
        of_ranks = run_on(size, tiny_llama_dir, out, 3, *([start, folder] if folder else []))
        assert of_ranks == [told[start : start + 3]] * size
        parts = [f"training-{i + 1:05}-of-{size:05}.safetensors" for i in range(size)]
        files = sorted(file.name for file in (out / "last").glob("training*"))
        assert files == ([*parts, "training.index.json"] if size > 1 else ["training.safetensors"])
        folder = out
    assert sha256(folder) == sha256(whole)


class Ranks:
    """The script on `size` ranks, as a launcher would start it that ends none of them."""

    def __init__(self, size, model, out, **more):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(model), str(out), "100000"],
                env=environment(
                    RANK=str(rank),
                    WORLD_SIZE=str(size),
                    LOCAL_RANK=str(rank),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    ENDLESS="1",
                    **more,
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait_for_steps(self, count):
        for process in self.processes:
            while f"step {count}" not in (line := process.stdout.readline()):
                assert line, process.stderr.read()[-4000:]

    def end_of(self, rank, seconds):
        _, err = self.processes[rank].communicate(timeout=seconds)
        return self.processes[rank].returncode, err


@pytest.mark.parametrize("gone", [0, 2])
def test_a_killed_rank_ends_every_other_rank_with_its_cause(gone, tiny_llama_dir, tmp_path):
    with Ranks(3, tiny_llama_dir, tmp_path) as ranks:
        ranks.wait_for_steps(2)
        ranks.processes[gone].send_signal(signal.SIGKILL)
        began = time.monotonic()
        for rank in {0, 1, 2} - {gone}:
            status, error = ranks.end_of(rank, 30)
            assert status != 0 and "InternalError" in error, error[-2000:]
        assert time.monotonic() - began < 30


def test_a_stopped_rank_is_taken_for_lost_after_the_timeout(tiny_llama_dir, tmp_path):
    with Ranks(2, tiny_llama_dir, tmp_path, TWINKLE_DIST_TIMEOUT_SECONDS="6") as ranks:
        ranks.wait_for_steps(2)
        ranks.processes[1].send_signal(signal.SIGSTOP)
        status, error = ranks.end_of(0, 60)
        assert status != 0 and "InternalError" in error and "Timed out" in error, error[-2000:]


def test_what_this_version_does_not_have_is_refused_by_name(tiny_llama_dir):
    text = f"""
import os
from twinkle import DeviceMesh
from twinkle.errors import NotAvailableError
from twinkle.model import TransformersModel
for axis in ("tp", "pp", "cp"):
    try:
        TransformersModel({str(tiny_llama_dir)!r}, device_mesh=DeviceMesh.from_sizes(
            **{{f"{{axis}}_size": 2}}))
        print("taken", axis)
    except NotAvailableError as error:
        assert f"{{axis}}_size 2" in str(error), error
"""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=environment(WORLD_SIZE="2", RANK="0"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr
