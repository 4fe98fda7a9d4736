"""The Python of the documents for users, and the scripts in examples/, on a tiny model."""

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("engine_built")
ROOT = Path(__file__).parents[3]
REPLIES = ("I am Nova.", "The sky is blue, and I am Nova.")


def chat(i):
    messages = [("user", f"Who are you, {i}?"), ("assistant", REPLIES[i % 2])]
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def write(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path, tiny_llama_dir, monkeypatch):
    """The current folder, with the files that documents name; smollm2 is the tiny model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TWINKLE_MODEL_ID_ALIASES", f"smollm2={tiny_llama_dir}")
    write(tmp_path / "my.jsonl", [chat(i) for i in range(20)])
    write(tmp_path / "held_out.jsonl", [chat(i) for i in range(20, 23)])
    pairs = [{"prompt": f"{i}?", "chosen": REPLIES[0], "rejected": REPLIES[1]} for i in range(5)]
    write(tmp_path / "pairs.jsonl", pairs)
    questions = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(5)]
    write(tmp_path / "gsm8k.jsonl", questions)
    return tmp_path


@pytest.mark.parametrize("name", ["training", "preferences", "grpo"])
def test_the_python_of_a_document_runs_from_top_to_bottom(folder, capsys, name):
    text = (ROOT / f"docs/{name}.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code
    names = {}
    for part in code:
        exec(compile(part, f"docs/{name}.md", "exec"), names)
    if name == "training":
        assert names["saved"] == {
            "cur_step": 3, "consumed_train_samples": 20, "gradient_accumulation_steps": 1,
        }  # fmt: skip
        assert (folder / "outputs/merged/model.safetensors").is_file()
    if name == "grpo":  # its reward moves; that of smollm2 rises
        rewards = re.findall(r"mean reward (\d\.\d+)", capsys.readouterr().out)
        assert len(rewards) == 10
        assert len(set(rewards)) > 1


def run_example(monkeypatch, capsys, name, *arguments):
    """Its output, as lines."""
    file = ROOT / f"examples/{name}.py"
    monkeypatch.setattr("sys.argv", [str(file), *map(str, arguments)])
    runpy.run_path(str(file), run_name="__main__")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("sft", "my.jsonl", r"2 \d+\.\d+"),
        ("dpo", "pairs.jsonl", r"2 loss \d\.\d{4} rewards/margins -?\d\.\d{4}"),
        ("reward", "pairs.jsonl", r"2 loss \d\.\d{4} rewards/margins -?\d\.\d{4}"),
        ("grpo", "gsm8k.jsonl", r"2 mean reward \d\.\d{3}, right \d+ of 8"),
    ],
)
def test_an_example_takes_two_steps_and_saves(folder, monkeypatch, capsys, name, data, line):
    more = ["--max-tokens", 8] if name == "grpo" else []
    script = (ROOT / f"examples/{name}.py").read_text()
    assert sum(bool(line.strip()) for line in script.splitlines()) <= 40
    *_, last, saved = run_example(monkeypatch, capsys, name, data, "--steps", 2, *more)
    assert re.fullmatch(line, last), last
    assert saved == f"saved {folder}/outputs/{name}/adapter"
    assert (folder / f"outputs/{name}/adapter/adapter_model.safetensors").stat().st_size > 0


def test_the_example_of_fine_tuning_resumes_bit_for_bit_and_tells_the_validation_loss(
    folder, monkeypatch, capsys
):
    def sft(output, *more):
        return run_example(
            monkeypatch, capsys, "sft", "my.jsonl", "--output", output, "--steps", 12, *more
        )

    whole = sft("whole")
    shutil.copytree(folder / "whole/state", folder / "parts/state")  # the state at its end
    with pytest.raises(SystemExit, match="2"):
        sft("parts")
    assert "parts holds an earlier run: --resume it, or name" in capsys.readouterr().err
    assert len(sft("parts", "--resume")) == 1, "nothing is left to train"
    shutil.rmtree(folder / "parts")
    sft("parts", "--steps", 10)
    *resumed, validation, saved = sft("parts", "--resume", "--validation", "held_out.jsonl")
    assert resumed == whole[10:12]
    assert re.fullmatch(r"validation \d+\.\d+", validation)
    assert saved == f"saved {folder}/parts/adapter"
    left, right = (
        (folder / name / "adapter/adapter_model.safetensors").read_bytes()
        for name in ("whole", "parts")
    )
    assert left == right
