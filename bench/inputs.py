"""Real tokens: GSM8K through the model's chat template, as batches and as prompts."""

import json
import os
from pathlib import Path

import numpy as np


def rows(count):
    """The first rows of gsm8k_train.jsonl in the folder that TWINKLE_TEST_DATA names."""
    folder = os.environ.get("TWINKLE_TEST_DATA")
    if not folder:
        raise SystemExit(
            "bench: TWINKLE_TEST_DATA is not set: it names the folder that holds gsm8k_train.jsonl"
        )
    file = Path(folder) / "gsm8k_train.jsonl"
    if not file.is_file():
        raise SystemExit(f"bench: {file} is missing: it is GSM8K's training set, one row per line")
    with file.open() as lines:
        return [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]


def batches_of(grid):
    """Rows of tokens [count, size, length]: every token is scored but the first of its row."""
    ends = np.full((*grid.shape[:2], 1), -100)
    labels = np.concatenate([grid[:, :, 1:], ends], axis=2)
    return [{"ids": i.tolist(), "labels": t.tolist()} for i, t in zip(grid, labels, strict=True)]


class RandomInputs:
    """The same of tokens that are drawn, for models whose weights are; prompts have `context`
    tokens."""

    def __init__(self, vocabulary, context, seed):
        self._vocabulary, self._context, self._seed = vocabulary, context, seed

    def full_batches(self, count, size, length):
        grid = self._draws().integers(3, self._vocabulary, (count, size, length))
        return batches_of(grid)

    def prompts(self, count):
        return self._draws().integers(3, self._vocabulary, (count, self._context)).tolist()

    def requests(self, count, longest):
        """Prompts, and how many tokens each is to have more. Lengths are log-normal, clipped at
        `longest`, with the means of ShareGPT's talks about 220 and 200 tokens."""
        draws = self._draws()
        lengths, counts = (
            np.clip(draws.lognormal(mean, 1.0, count).astype(int), 4, longest).tolist()
            for mean in (4.9, 4.8)
        )
        prompts = [draws.integers(3, self._vocabulary, length).tolist() for length in lengths]
        return prompts, counts

    def _draws(self):
        return np.random.default_rng(self._seed)


class Inputs:
    """Batches as {"ids": B lists, "labels": B lists}; labels[t] is the token after t, or -100."""

    def __init__(self, model):
        from twinkle.template import Template

        self._template = Template(model)
        self._rows = rows(800)

    def _example(self, row):
        talk = [("user", row["question"]), ("assistant", row["answer"])]
        messages = [{"role": role, "content": content} for role, content in talk]
        return self._template.encode({"messages": messages})

    def full_batches(self, count, size, length):
        """Texts one after the other, cut into rows of exactly `length`; every token is scored."""
        ids, needed = [], count * size * length
        for row in self._rows:
            ids += self._example(row)["input_ids"].tolist()
            if len(ids) >= needed:
                break
        grid = np.array(ids[:needed]).reshape(count, size, length)
        return batches_of(grid)

    def mixed_batches(self, count, size):
        """One question with its answer per row, in the file's order; the answers are scored."""
        out = []
        for start in range(0, count * size, size):
            examples = [self._example(row) for row in self._rows[start : start + size]]
            out.append(
                {
                    "ids": [e["input_ids"].tolist() for e in examples],
                    "labels": [e["labels"].tolist() for e in examples],
                }
            )
        return out

    def prompts(self, count):
        out = []
        for row in self._rows[:count]:
            messages = [{"role": "user", "content": row["question"]}]
            feature = self._template.encode({"messages": messages}, add_generation_prompt=True)
            out.append(feature["input_ids"].tolist())
        return out
