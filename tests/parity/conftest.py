"""Parity with transformers and peft. Every name of a test holds the seed; TWINKLE_PARITY_SEED draws
other models.
"""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("twinkle._core", reason="the extension is not built: make build")

from parity import models  # noqa: E402


@pytest.fixture(scope="session")
def smollm2(smollm2_dir):
    """The built-in model in transformers, float32. Not to be changed."""
    return models.load_reference(smollm2_dir)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_dir):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(smollm2_dir)


@pytest.fixture(scope="session")
def gsm8k(data_dir, smollm2_tokenizer):
    """The first 600 rows, uncut, in SmolLM2's tokens; the answer is scored."""
    out = []
    with (data_dir / "gsm8k_train.jsonl").open() as lines:
        for row in (json.loads(next(lines)) for _ in range(600)):
            prompt = smollm2_tokenizer(row["question"] + "\n")["input_ids"]
            reply = smollm2_tokenizer(row["answer"])["input_ids"]
            ids, labels = prompt + reply, [-100] * len(prompt) + reply
            out.append({"input_ids": ids[:-1], "labels": labels[1:]})
    return out
