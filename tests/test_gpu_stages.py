"""The first hour on a GPU (bench/gpu: bundle.sh, stage.sh), rehearsed without one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/release"


def run(*command, **environment):
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, **environment},
    )


@pytest.mark.parametrize(
    ("stage", "results", "row"),
    [
        (1, ["probe.json", "workspace.json"], "4B q, lt, no split |"),
        (2, ["profile.json", "fast.json"], "4B: a training step of 24 tokens |"),
    ],
)
def test_a_stage_is_rehearsed_on_the_cpu(stage, results, row, tmp_path):
    if not (BUILD / "engine_test").exists():
        pytest.skip("nothing was built: make build")
    ran = run("bench/gpu/stage.sh", stage, "--rehearse", OUT=tmp_path, OMP_NUM_THREADS="1")
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert ran.returncode == 0, ran.stdout + logs[-4000:]
    assert f"| {row}" in ran.stdout
    for name in results:
        assert json.loads((tmp_path / name).read_text())
    assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.parametrize(
    ("stage", "asked"),
    [(4, {("G5", "head"), ("G3", "135M"), ("G3", "0.6B"), ("G8", "0.6B")}),
     (5, {(id_, "4B") for id_ in ("G1", "G7", "G10", "G11")})],
)  # fmt: skip
@pytest.mark.soak  # tests/bench/test_bench_gpu.py rehearses every question without the script
def test_a_stage_of_the_benchmark_is_rehearsed_on_the_cpu(stage, asked, tmp_path):
    for needed in ("transformers", "peft", "tqdm", "twinkle._core"):
        pytest.importorskip(needed)
    ran = run("bench/gpu/stage.sh", stage, "--rehearse", OUT=tmp_path, OMP_NUM_THREADS="1")
    assert ran.returncode == 0, ran.stdout + (tmp_path / "bench.log").read_text()[-4000:]
    names = {"head": "head", "135M": "SmolLM2-135M", "0.6B": "Qwen3-0.6B", "4B": "Qwen3-4B"}
    rows = json.loads((tmp_path / "rehearsal.json").read_text())
    assert {row["id"] for row in rows} == {id_ for id_, _ in asked}
    for id_, shape in asked:
        text = rf"^\| {id_} \| rehearsal: .*{names[shape]}"
        assert re.search(text, ran.stdout, re.MULTILINE), (text, ran.stdout)
    assert {path.name for path in tmp_path.iterdir()} == {"rehearsal.json", "bench.log"}


def test_a_stage_that_fails_says_what_and_goes_on(tmp_path):
    none = shutil.which("false")
    ran = run("bench/gpu/stage.sh", 2, "--rehearse", OUT=tmp_path, PYTHON=none)
    assert ran.returncode == 1
    assert ran.stdout.count("failed (1)") == 2
    assert run("bench/gpu/stage.sh", 6).returncode == 2


def test_a_stage_without_time_for_a_command_has_failed(tmp_path):
    script = (ROOT / "bench/gpu/stage.sh").read_text()
    assert script.count("SECONDS + 525") == 1
    (tmp_path / "stage.sh").write_text(script.replace("SECONDS + 525", "SECONDS + 0"))
    ran = run("bash", tmp_path / "stage.sh", 2, "--rehearse", OUT=tmp_path)
    assert ran.stdout.count("no time left for: ") == 2
    assert ran.returncode == 1


def bundled(*python):
    ran = run("bench/gpu/bundle.sh", *python)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert ran.stdout.splitlines()[-1].endswith(" MiB")
    assert list((ROOT / "outputs/gpu/bundle").glob("twinkle*.whl"))


def test_what_goes_to_a_gpu_machine_is_whole():
    """The script itself checks it: every library is found, no Boost is asked for."""
    if not (BUILD / "engine_test").exists():
        pytest.skip("nothing was built: make build")
    if not (BUILD / "libtwinkle_cuda.so").exists():  # no nvcc here
        ran = run("bench/gpu/bundle.sh")
        assert ran.returncode == 1 and "libtwinkle_cuda.so is missing" in ran.stderr
        return
    bundled()


@pytest.mark.soak
def test_the_same_for_python_3_12():
    """Compiles everything, in an environment of its own: half an hour, and torch once more."""
    named = [os.environ.get("PYTHON312"), shutil.which("python3.12")]
    named += sorted(Path.home().glob(".pyenv/versions/3.12*/bin/python3.12"))
    # pyenv's own python3.12 is there and does not run where another version is the chosen one.
    python = next((found for found in named if found and not run(found, "-c", "").returncode), None)
    if python is None:
        pytest.skip("no Python 3.12: PYTHON312 may name one")
    bundled(python)
