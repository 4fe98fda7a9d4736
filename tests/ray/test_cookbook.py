"""The cookbook's scripts over several processes, two steps of each on a tiny model: what they save
has the bits of one process."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from parallel.forks import environment
from scripts.test_cookbook import PAIRS, SUMS
from scripts.test_seed_scripts import self_cognition

COOKBOOK = Path(__file__).parents[2] / "cookbook"
OF_FSDP2 = ["--train-samples", "4", "--eval-samples", "2", "--eval-interval", "1"]
BY_TORCHRUN = [  # script, rows, arguments, those of two ranks
    ("transformers/fsdp2.py", self_cognition(), OF_FSDP2, ["--dp-size", "2"]),
    ("transformers/fsdp2.py", self_cognition(), OF_FSDP2, ["--fsdp-size", "2"]),
    ("rl/dpo/dpo_lora.py", PAIRS, [], ["--dp-size", "2"]),
]
ON_RAY = [
    ("rl/dpo/dpo_full.py", PAIRS, [], ["--model-gpus", "2", "--ref-model-gpus", "1"]),
    ("rl/gkd/gkd_off_policy.py", SUMS, ["--gkd-topk", "3"],
     ["--model-gpus", "2", "--sampler-gpus", "1"]),
    ("rl/grpo/grpo.py", SUMS, ["--num-generations", "2", "--max-tokens", "4"],
     ["--model-gpus", "2", "--sampler-gpus", "2"]),
]  # fmt: skip
pytestmark = pytest.mark.soak


@pytest.fixture
def arguments(tiny_llama_dir, tmp_path):
    """arguments(name, rows, more): of a script, with the file of its rows."""

    def of(name, rows, more):
        data = tmp_path / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags = ("--student-model-id", "--teacher-model-id") if "gkd" in name else ("--model-id",)
        models = [text for flag in flags for text in (flag, tiny_llama_dir)]
        sizes = ["--batch-size", "2", "--max-steps", "2", "--log-interval", "1"]
        return [COOKBOOK / name, *models, *sizes, "--dataset-id", data, *more]

    return of


def local(folder, *command):
    """Runs Python in a new folder, where its output is, and returns what it has printed."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment(), cwd=folder, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stderr


def saved(folder):
    """{(checkpoint, file): hash} of what a script has saved, but for the parts that each rank
    writes for its own training to go on, and the place in it."""
    out = {
        (file.parent.name, file.name): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (folder / "output").glob("*/*")
        if not file.name.startswith("training") and file.name != "trainer_state.json"
    }
    assert any(".safetensors" in name for _, name in out)
    return out


def replies(log):
    """The lines of a log without their times."""
    return re.split(r"\[.{19}\]\[INFO:twinkle\] ", log)[-3:]


@pytest.mark.parametrize("case", BY_TORCHRUN)
def test_by_torchrun(case, arguments, tmp_path):
    *script, ranks = case
    given = arguments(*script)
    local(tmp_path / "one", *given)
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    local(tmp_path / "two", *start, *given, *ranks)
    assert saved(tmp_path / "two") == saved(tmp_path / "one")


@pytest.mark.parametrize("case", ON_RAY)
def test_on_ray(case, arguments, cluster, tmp_path):
    *script, groups = case
    given = arguments(*script)
    local(tmp_path / "one", *given)
    (tmp_path / "ray").mkdir()
    cluster.run([*given, "--mode", "ray", *groups], folder=tmp_path / "ray")
    assert saved(tmp_path / "ray") == saved(tmp_path / "one")


def test_the_sampling_script_on_ray(arguments, cluster, tmp_path, tiny_llama_dir):
    local(tmp_path / "one", *arguments("transformers/fsdp2.py", self_cognition(), OF_FSDP2))
    adapter = tmp_path / "one/output/last-checkpoint"
    given = [COOKBOOK / "sample/sample.py", "--model-id", tiny_llama_dir, "--lora-path", adapter]
    given += ["--max-tokens", "4", "--temperature", "0"]
    alone = local(tmp_path / "alone", *given)
    done = cluster.run([*given, "--mode", "ray", "--sampler-gpus", "2"])
    assert replies(done.stderr) == replies(alone)
    assert "7 times 8?" in replies(alone)[-1]
