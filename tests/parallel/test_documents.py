"""The torchrun scripts of the source documents and of docs/parallel.md over several processes: the
bits of one."""

import json
import re
import subprocess
import sys
from pathlib import Path

from parallel.processes import alone, environment, sha256, torchrun

PAGE = Path(__file__).parents[2] / "docs/parallel.md"


def places(model, data_dir):
    data = data_dir / "self_cognition.jsonl"
    return {
        "TWINKLE_MODEL_ID_ALIASES": f"ms://Qwen/Qwen3.5-4B={model}",
        "TWINKLE_DATASET_ID_ALIASES": f"ms://swift/self-cognition={data}",
    }


def check(one, several, size, where, **mesh):
    """one, several: folders in which the script runs, and saves."""
    for folder in (one, several):
        folder.mkdir()
    told = alone("noted.py", cwd=one, MESH="{}", **where)
    assert sum(name == "forward_backward" for name, _ in told) == 10
    assert sum(name == "calculate_loss" for name, _ in told) == 6  # of two evaluations
    assert torchrun(size, "noted.py", cwd=several, MESH=json.dumps(mesh), **where) == [told] * size
    saved = sorted(folder.name for folder in (one / "output").iterdir())
    assert saved == sorted(folder.name for folder in (several / "output").iterdir())
    assert {"checkpoint-4", "last-checkpoint"} <= set(saved)
    for name in saved:
        assert sha256(several / "output" / name) == sha256(one / "output" / name)


def test_the_documents_script_on_a_tiny_model(tiny_llama_dir, data_dir, tmp_path):
    where = places(tiny_llama_dir, data_dir)
    check(tmp_path / "one", tmp_path / "two", 2, where, dp_size=2)


def test_the_documents_script_on_a_real_model(smollm2_dir, data_dir, tmp_path):
    where = places(smollm2_dir, data_dir)
    check(tmp_path / "one", tmp_path / "two", 2, where, dp_size=2)


def test_the_script_of_the_page_prints_on_two_processes_what_it_prints_on_one(
    tiny_llama_dir, tmp_path
):
    (script,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "DataLoader" in code
    )
    printed = {}
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        chats = [
            {
                "messages": [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": told},
                ]
            }
            for asked, told in (
                ("Who are you?", "I am Nova."),
                ("And who made you?", "The Sky Team."),
            )
        ]
        (folder / "my.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
        (folder / "train.py").write_text(script.replace("dp_size=2", f"dp_size={size}"))
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        start += [f"--nproc_per_node={size}", "train.py"]
        where = environment(TWINKLE_MODEL_ID_ALIASES=f"smollm2={tiny_llama_dir}")
        done = subprocess.run(
            start, env=where, cwd=folder, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stderr[-4000:]
        printed[size] = done.stdout
    assert len(printed[1].splitlines()) == 5 and printed[1] == printed[2]
    saved = [tmp_path / size / "outputs/parallel/adapter" for size in ("1", "2")]
    assert sha256(saved[0]) == sha256(saved[1])
