"""The program `twinkle` as a shell starts it: help, a model's facts, what it says to mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import twinkle
from twinkle import program

ROWS = [
    {"messages": [{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "a"}]}
    for i in range(2)
]


@pytest.fixture
def call(engine_built, tmp_path):
    """Runs it in a folder of its own: (exit status, stdout, stderr)."""
    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    code = "from twinkle.program import main; main()"  # what the console script runs
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    environment.pop("TWINKLE_PYTHON", None)

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_program_beside_this_python_starts(engine_built):
    """What `make build` installs: .venv/bin/twinkle."""
    installed = Path(sys.executable).parent / "twinkle"
    if not installed.exists():
        pytest.skip(f"{installed} is not installed: make build")
    done = subprocess.run([installed, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


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
                         "--batch-size"]}  # fmt: skip
    for command in commands:
        status, text, _ = call(command, "--help")
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
    ("arguments", "text"),
    [
        ([], "A subcommand is required"),
        (["fly"], "A subcommand is required"),
        (["info"], "model is required"),
        (["info", "MODEL", "--speed", "3"], "The following arguments were not expected: 3 --speed"),
        (["sample", "MODEL"], "prompt is required"),
        (["train", "MODEL"], "data is required"),
        (["train", "MODEL", "rows.jsonl", "--rank", "x"], "Could not convert: --rank = x"),
        (["train", "MODEL", "rows.jsonl", "--rank", "0", "--output", "out"],
         "it must be an integer of at least 1"),
        (["train", "MODEL", "none.jsonl", "--output", "out"], "none.jsonl"),
        (["train", "MODEL", "broken.jsonl", "--output", "out"], "broken.jsonl line 2"),
        (["sample", "MODEL", "hi", "--top-p", "0"], "top_p"),
        (["sample", "MODEL", "hi", "--adapter", "nowhere"], "nowhere"),
        (["info", "nowhere"],
         "hub: 'nowhere' is neither a directory here nor an id of the form owner/name"),
        (["info", "empty"], "empty holds no weights"),
    ],
)  # fmt: skip
def test_mistakes_are_told_and_write_nothing(call, tiny_llama_dir, tmp_path, arguments, text):
    lines = [json.dumps(row) for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "broken.jsonl").write_text(lines[0] + '\n{"messages": \n')
    (tmp_path / "empty").mkdir()
    before = sorted(Path(tmp_path).rglob("*"))
    status, _, errors = call(*(tiny_llama_dir if a == "MODEL" else a for a in arguments))
    assert status != 0 and text in errors
    assert "Traceback" not in errors and "terminate called" not in errors
    assert sorted(Path(tmp_path).rglob("*")) == before


def test_without_the_executable_it_says_what_makes_it(monkeypatch):
    monkeypatch.setattr(program, "path", lambda: None)
    with pytest.raises(SystemExit, match="bin/twinkle is not in the installed package: run `make"):
        program.main()
