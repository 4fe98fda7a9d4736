"""The program `twinkle` as a shell starts it: help, a model's facts, what it says to mistakes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import twinkle
from twinkle import program

ROWS = [
    {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "a"}]}
    for i in range(2)
]


# The command of the console script.
PROGRAM = [sys.executable, "-c", "from twinkle.program import main; main()"]


@pytest.fixture
def start(engine_built, tmp_path):
    """Starts it in a folder of its own: its Popen."""
    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    environment.pop("TWINKLE_PYTHON", None)

    def run(*arguments, **more):
        return subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            cwd=tmp_path, env=environment | more, text=True,
            # A pipe that nobody reads is full, and holds a training up, before its last step.
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096,
        )  # fmt: skip

    return run


@pytest.fixture
def call(start):
    """Runs it: (exit status, stdout, stderr)."""

    def run(*arguments):
        process = start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


def test_the_program_beside_this_python_starts(engine_built):
    """The program that `make build` installs: .venv/bin/twinkle."""
    installed = Path(sys.executable).parent / "twinkle"
    if not installed.exists():
        pytest.skip(f"{installed} is not installed: make build")
    done = subprocess.run([installed, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


def test_the_module_is_the_program(engine_built):
    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    command = [sys.executable, "-m", "twinkle", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, twinkle.__version__ + "\n")


def test_help_names_every_command_and_each_command_its_options(call):
    status, text, _ = call("--help")
    assert status == 0
    commands = ("info", "sample", "train")
    listed = text.split("Subcommands:")[1].split()
    assert [word for word in listed if word in commands] == list(commands)
    options = {"info": ["model"],
               "sample": ["model", "prompt", "--adapter", "--max-tokens", "--temperature",
                          "--top-p", "--top-k", "--min-p", "--system"],
               "train": ["model", "data", "--output", "--rank", "--lr", "--epochs",
                         "--batch-size", "--full", "--target-modules", "--lr-schedule",
                         "--warmup-steps", "--save-steps", "--validation", "--overwrite",
                         "--resume", "smollm2", ".gguf", "Exit status: 0 done", '"messages"',
                         '"completion"', "AlpacaProcessor"]}  # fmt: skip
    for command in commands:
        status, text, _ = call(command, "--help-all" if command == "train" else "--help")
        assert status == 0 and f"Usage: twinkle {command}" in text
        for option in options[command]:
            assert option in text, (command, option)


def test_the_version_is_the_packages(call):
    assert call("--version") == (0, twinkle.__version__ + "\n", "")


def test_info_says_what_transformers_counts(call, tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    c = model.config
    status, text, errors = call("info", tiny_llama_dir)
    assert (status, errors) == (0, "")
    million = sum(p.numel() for p in model.parameters()) / 1e6
    assert text.splitlines() == [
        f"family {c.model_type}",
        f"layers {c.num_hidden_layers}, width {c.hidden_size}, heads {c.num_attention_heads} "
        f"({c.num_key_value_heads} for keys), head size {c.head_dim}",
        f"vocabulary {c.vocab_size}, positions {c.max_position_embeddings}",
        f"weights {million:.1f} million in {len(model.state_dict())} tensors",
    ]


@pytest.mark.parametrize(
    ("status", "arguments", "text"),
    [
        (2, [], "A subcommand is required"),
        (2, ["fly"], "A subcommand is required"),
        (2, ["info"], "model is required"),
        (2, ["info", "MODEL", "--speed", "3"],
         "there is no option '--speed'; not expected: --speed 3; 'twinkle info --help'"),
        (2, ["sample", "MODEL"], "prompt is required"),
        (2, ["sample", "MODEL", "hi", "--top-p", "0"], "top_p"),
        (2, ["train", "MODEL"], "data is required"),
        (2, ["train", "MODEL", "rows.jsonl", "--rank", "x"],
         "--rank is 'x', it must be an integer of at least 1, at most 4096"),
        (2, ["train", "MODEL", "rows.jsonl", "--rank", "0", "--output", "out"],
         "--rank is '0', it must be an integer of at least 1, at most 4096"),
        (1, ["train", "MODEL", "none.jsonl", "--output", "out"], "none.jsonl"),
        (1, ["train", "MODEL", "broken.jsonl", "--output", "out"], "broken.jsonl line 2"),
        (1, ["train", "MODEL", "rows.jsonl", "--output", "out", "--resume"], "nothing to resume"),
        (1, ["sample", "MODEL", "hi", "--adapter", "nowhere"],
         "twinkle: cli: --adapter nowhere does not exist; name a directory that"),
        (1, ["info", "none.gguf"], "twinkle: cli: model 'none.gguf' is neither a path here nor "),
        (2, ["train", "MODEL", "rows.jsonl", "--preprocessor", "Alpaca"], "it must be one of"),
        (2, ["train", "MODEL", "rows.jsonl", "--preprocessor", "EmojiDPOProcessor"], "pairs"),
        (1, ["info", "nowhere"],
         "twinkle: cli: model 'nowhere' is neither a path here nor an id of the form owner/name\n"),
        (1, ["info", "smolm2"], "; did you mean smollm2?\n"),
        (1, ["sample", "adapter", "hi"], "to 'twinkle sample' as --adapter adapter\n"),
        (1, ["info", "empty"], "empty holds no weights"),
    ],
)  # fmt: skip
def test_mistakes_are_told_and_write_nothing(
    call, tiny_llama_dir, tmp_path, status, arguments, text
):
    lines = [json.dumps(row) for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "broken.jsonl").write_text(lines[0] + '\n{"messages": \n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    before = sorted(Path(tmp_path).rglob("*"))
    ended, _, errors = call(*(tiny_llama_dir if a == "MODEL" else a for a in arguments))
    assert ended == status and text in errors
    assert errors.startswith("twinkle: ") and errors.count("\n") == 1, errors
    assert sorted(Path(tmp_path).rglob("*")) == before


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            ["train", "MODEL", "rows.jsonl"],
            "interrupted before the first step; nothing new is saved",
        ),
        (["sample", "MODEL", "hi"], "interrupted"),
    ],
)
def test_an_interrupt_that_has_nothing_to_save_is_one_line_and_status_1(
    start, tmp_path, command, text
):
    """It comes while the model is looked for, here by a Python that does nothing."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\ntouch asked\nexec sleep 100\n")
    slow.chmod(0o755)
    process = start(*command, TWINKLE_PYTHON=str(slow))
    while process.poll() is None and not (tmp_path / "asked").exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=20)  # the pipes end with the child, too
    assert (process.returncode, out) == (1, "")
    assert errors.splitlines() == ["", f"twinkle: {text}"]


# Gets the signal when nothing but the loading of the executable is left.
INTERRUPTED = """
import os, signal
from twinkle import program
signal.signal(signal.SIGNAL, signal.SIG_DFL)  # nohup has SIGHUP ignored
start = os.execv
def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGNAL)
    start(*arguments)
os.execv = interrupted
program.main()
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupt_while_the_executable_is_loaded_is_one_line_and_status_1(
    call, monkeypatch, name
):
    command = [sys.executable, "-c", INTERRUPTED.replace("SIGNAL", name)]
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", command)
    assert call("info", "nowhere") == (1, "", "\ntwinkle: interrupted\n")


def train(model, output):
    return ["train", model, "rows.jsonl", "--output", output, "--epochs", 60, "--batch-size", 1,
            "--lr", 0.01, "--lr-schedule", "linear", "--warmup-steps", 3]  # fmt: skip


def test_an_interrupted_training_saves_and_names_the_command_that_ends_it_with_the_same_bits(
    start, call, tiny_llama_dir, tmp_path
):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    status, told, errors = call(*train(tiny_llama_dir, "whole"))
    assert status == 0, errors
    progress = r"step 120/120  loss \d+\.\d{4}  \d+ tokens/s  0 s left"
    assert re.fullmatch(progress, errors.splitlines()[-1])
    assert told.splitlines()[0] == "saved whole/adapter"

    process = start(*train(tiny_llama_dir, "parts"))
    assert process.stderr.readline().startswith("step 1/120  loss ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    *_, told, command = errors.splitlines()
    pattern = r"twinkle: cli: interrupted after step (\d+) of 120; parts holds the state; .*"
    assert int(re.fullmatch(pattern, told)[1]) < 120

    name, *again = shlex.split(command)
    assert (name, again[-1]) == ("twinkle", "--resume")
    status, _, errors = call(*again)
    assert status == 0, errors
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")


def weights_of(folder):
    return (folder / "adapter/adapter_model.safetensors").read_bytes()


def test_a_training_that_is_killed_goes_on_from_its_last_save_with_the_same_bits(
    start, call, tiny_llama_dir, tmp_path
):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    status, _, errors = call(*train(tiny_llama_dir, "whole"))
    assert status == 0, errors

    command = [*train(tiny_llama_dir, "parts"), "--save-steps", 7]
    process, state = start(*command), tmp_path / "parts/state/trainer_state.json"
    while process.poll() is None and not state.exists():
        time.sleep(0.001)
    process.kill()
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    step = json.loads(json.loads(state.read_text())["extra"])["cur_step"]
    assert 0 < step < 120 and step % 7 == 0

    status, _, errors = call(*command, "--resume")
    assert status == 0, errors
    assert re.match(rf"step {step + 1}/120  loss ", errors)
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")


def test_without_the_executable_it_says_what_makes_it(monkeypatch):
    monkeypatch.setattr(program, "path", lambda: None)
    with pytest.raises(SystemExit, match="bin/twinkle is not in the installed package: run `make"):
        program.main()


def test_a_gguf_file_is_a_model_with_the_tokenizer_beside_it(call, tmp_path, smollm2_dir):
    from twinkle.hub import models as hub_models

    (tmp_path / "m.gguf").symlink_to(hub_models._smollm2_gguf())
    status, _, errors = call("sample", "m.gguf", "Hi", "--max-tokens", "2")
    assert status == 1
    assert errors.startswith("twinkle: text: cannot open tokenizer.json, "), errors
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(Path(smollm2_dir) / name)
    status, out, errors = call("sample", "m.gguf", "Hi", "--max-tokens", "2", "--temperature", "0")
    assert (status, errors) == (0, "")
    assert out.strip()
