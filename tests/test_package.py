"""`pip install .` and `pip install -e .` in an environment that holds nothing, from a clean copy.

Each compiles everything in pip's own build environment: minutes, and a torch is downloaded twice.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ONE_STEP = """
import sys
import torch
from twinkle.data_format import LoraConfig
from twinkle.model import TransformersModel
model = TransformersModel(model_id=sys.argv[1])
model.add_adapter_to_model("default", LoraConfig(r=4, target_modules="all-linear"))
model.set_optimizer(optimizer_cls="AdamW", lr=1e-2)
batch = [{"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, -100]}]
first = float(model.forward_backward(inputs=batch)["loss"])
model.clip_grad_and_step()
second = float(model.forward_backward(inputs=batch)["loss"])
assert second < first, (first, second)
"""


def run(*command, **options):
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **options
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


@pytest.mark.soak
@pytest.mark.parametrize("how", [["."], ["-e", "."]], ids=["copied", "editable"])
def test_the_package_installs_in_a_clean_environment_and_trains(
    how, tmp_path, tracked, tiny_llama_dir
):
    source = tmp_path / "source"
    for path in tracked():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, source / path)
    before = sorted(source.rglob("*"))
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python, program = tmp_path / "venv/bin/python", tmp_path / "venv/bin/twinkle"
    # pip's own build environment obeys the same pins; a core for each compiler, no more.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PIP_CONSTRAINT"] = str(ROOT / "requirements/constraints.txt")
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
    run(python, "-m", "pip", "install", "--quiet", *how, cwd=source, env=environment)
    assert sorted(source.rglob("*")) == before  # nothing is left in the sources

    where = "import twinkle, twinkle.program; print(twinkle.program.__file__)"
    found = run(python, "-c", where, cwd=tmp_path).strip()
    assert Path(found).is_relative_to(source / "python") == (how[0] == "-e")
    assert "train" in run(program, "--help", cwd=tmp_path)
    run(python, "-c", ONE_STEP, tiny_llama_dir, cwd=tmp_path)
    shutil.rmtree(tmp_path / "venv")  # gigabytes
