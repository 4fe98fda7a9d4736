"""The preset that no other command uses still configures and compiles."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command):
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


def test_the_debug_preset_configures_and_builds_a_program_with_its_assertions(tmp_path):
    pytest.importorskip("torch")
    if not all(map(shutil.which, ("cmake", "ninja", "g++", "cargo"))):
        pytest.skip("no cmake, ninja, g++ or cargo: make setup")
    run("cmake", "--preset", "debug", "-B", tmp_path, f"-DPYTHON={sys.executable}")
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    (one,) = [c["command"].split() for c in commands if c["file"].endswith("base/json.cpp")]
    assert "-g" in one and "-DNDEBUG" not in one and "-O3" not in one
    run("cmake", "--build", tmp_path, "--target", "base_test")
    assert "[  PASSED  ]" in run(tmp_path / "base_test")
