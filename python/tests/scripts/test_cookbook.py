"""The cookbook's scripts, two steps of each on a tiny model, in this process."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest
from scripts.test_seed_scripts import self_cognition

pytestmark = pytest.mark.usefixtures("engine_built")
COOKBOOK = Path(__file__).parents[3] / "cookbook"
SUMS = [
    {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
    for a, b in ((3, 4), (12, 30), (7, 7), (1, 9))
]
PAIRS = [{"prompt": f"Question {i}?", "chosen": f"Yes, {i}.", "rejected": "No."} for i in range(4)]
SCRIPTS = {
    "transformers/fsdp2.py": (
        self_cognition(),
        ["--train-samples", "4", "--eval-samples", "2", "--eval-interval", "1"],
    ),
    "rl/grpo/grpo.py": (SUMS, ["--num-generations", "2", "--max-tokens", "4"]),
    "rl/dpo/dpo_lora.py": (PAIRS, []),
    "rl/dpo/dpo_full.py": (PAIRS, []),
    "rl/gkd/gkd_off_policy.py": (SUMS, ["--gkd-topk", "3"]),
    "rl/gkd/gkd_on_policy.py": (SUMS, ["--gkd-topk", "3", "--max-tokens", "4"]),
    "rl/ppo/ppo.py": (SUMS, ["--max-tokens", "4", "--kl-coef", "0.1"]),
}


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Runs a script of the cookbook in tmp_path, with these rows and arguments."""

    def run(name, rows, arguments=()):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        for variable in [v for v in os.environ if v.startswith("TWINKLE_")]:
            if variable not in ("TWINKLE_DEVICE", "TWINKLE_TEST_DATA"):
                monkeypatch.delenv(variable)
        runpy.run_path(str(COOKBOOK / name), run_name="__main__")
        return tmp_path / "output"

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_steps_of_it_train_and_save_on_one_device(script, tiny_llama_dir, name):
    rows, arguments = SCRIPTS[name]
    is_gkd = "gkd" in name
    models = ("--student-model-id", "--teacher-model-id") if is_gkd else ("--model-id",)
    of_models = [text for flag in models for text in (flag, tiny_llama_dir)]
    sizes = ["--batch-size", "2", "--max-steps", "2", "--log-interval", "1", "--dataset-id"]
    output = script(name, rows, [*of_models, *sizes, "rows.jsonl", *arguments])
    saved = list(output.iterdir())
    assert saved and all(any(one.glob("*.safetensors")) for one in saved)


def test_what_fsdp2_saved_is_resumed_and_sampled_with(script, tiny_llama_dir):
    rows, sizes = SCRIPTS["transformers/fsdp2.py"]
    arguments = [*sizes]
    arguments += ["--model-id", tiny_llama_dir, "--dataset-id", "rows.jsonl", "--batch-size", "2"]
    output = script("transformers/fsdp2.py", rows, arguments)
    last = str(output / "last-checkpoint")
    script("transformers/fsdp2.py", rows, [*arguments, "--resume-from-checkpoint", last])
    of_sample = ["--model-id", tiny_llama_dir, "--lora-path", last, "--max-tokens", "4"]
    script("sample/sample.py", rows, of_sample)
