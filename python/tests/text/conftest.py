"""Tokenizers of SmolLM2 and Qwen3: `directory` and `reference` are each of them in turn."""

from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")

from text.conversations import npm_tokenizer  # noqa: E402


@pytest.fixture(scope="module", params=["smollm2", "tokenizer-qwen3"])
def directory(request):
    if request.param == "smollm2":
        return Path(request.getfixturevalue("smollm2_dir"))
    return npm_tokenizer(request.param)


@pytest.fixture(scope="module")
def qwen3():
    return npm_tokenizer("tokenizer-qwen3")


@pytest.fixture(scope="module")
def reference(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)
