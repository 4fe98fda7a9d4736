"""How the scripts of the source documents are run."""

import json
import os
import subprocess
import sys

import pytest

MODEL_IDS = ("ms://Qwen/Qwen3.5-4B", "ms://Qwen/Qwen2.5-7B-Instruct")


@pytest.fixture
def run(tiny_llama_dir, tmp_path):
    """Runs a script in a process and a folder of its own; returns its completed process."""

    def start(text, rows=(), model=tiny_llama_dir, **environment):
        (tmp_path / "train.py").write_text(text)
        data = tmp_path / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        ids = [i.removeprefix("ms://") for i in MODEL_IDS]
        environment = {
            **os.environ,
            "TWINKLE_MODEL_ID_ALIASES": ",".join(f"{i}={model}" for i in ids),
            "TWINKLE_DATASET_ID_ALIASES": f"swift/self-cognition={data}",
            "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
            **environment,
        }
        out = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert out.returncode == 0, out.stdout + out.stderr
        return out

    return start
