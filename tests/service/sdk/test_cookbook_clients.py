"""The cookbook's scripts for the `tinker` SDK: two steps of each against a server of this build."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from service.conftest import Server, environment

pytest.importorskip("tinker")
COOKBOOK = Path(__file__).parents[3] / "cookbook/client/tinker"
IDENTITY = [{"query": f"Who are you, {i}?", "response": "I am {{NAME}}."} for i in range(8)]
SUMS = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(4)]


def run(server, name, model, rows, folder, *arguments):
    """Runs the script; returns its output."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    variables = {
        "TWINKLE_SERVER_URL": server.url,
        "TWINKLE_MODEL_ID": "tiny",
        "TWINKLE_MODEL_ID_ALIASES": f"tiny={model}",
        "TWINKLE_DATASET_ID": "rows.jsonl",
        "TWINKLE_STEPS": "2",
        "TWINKLE_MAX_TOKENS": "4",
    }
    out = subprocess.run(
        [sys.executable, str(COOKBOOK / name), *arguments],
        cwd=folder,
        env={**environment(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


def test_they_train_and_sample_with_what_they_saved(tiny_llama_dir, tmp_path):
    server = Server(tiny_llama_dir, str(tmp_path / "state"))
    try:
        printed = run(server, "self_cognition.py", tiny_llama_dir, IDENTITY, tmp_path)
        assert len(re.findall(r"^step \d: loss \d", printed, re.MULTILINE)) == 2
        (weights,) = re.findall(r"^to sample (\S+)", printed, re.MULTILINE)
        sampled = run(server, "sample.py", tiny_llama_dir, IDENTITY, tmp_path, weights)
        assert [line[0] for line in sampled.splitlines() if line[:1].isdigit()] >= ["0", "1"]
        printed = run(server, "short_math_grpo.py", tiny_llama_dir, SUMS, tmp_path)
        assert re.findall(r"^saved tinker://\S+", printed, re.MULTILINE)
    finally:
        server.stop()
