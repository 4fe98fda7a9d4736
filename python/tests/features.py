"""Inputs: drawn ones, and three short ones with their loss on the fake bigram model in plain torch;
a loss in Python."""

import numpy as np
import torch

from twinkle.loss import Loss

A = {"input_ids": [1, 2, 3], "labels": [2, 3, -100]}
B = {"input_ids": [4, 5, 6, 7], "labels": [-100, 6, 7, -100]}
C = {"input_ids": [8, 9], "labels": [9, -100]}


def drawn(lengths, seed=0, vocab=300):
    """InputFeatures of random tokens; of each the first third is not scored."""
    rng = np.random.default_rng(seed)
    out = []
    for length in lengths:
        ids = rng.integers(3, vocab, length)
        labels = np.append(ids[1:], -100)
        labels[: length // 3] = -100
        out.append({"input_ids": ids, "labels": labels})
    return out


def reference(weight, features):
    """Sum of -log p over labels, with a gradient."""
    total, count = 0.0, 0
    for f in features:
        for i, y in zip(f["input_ids"], f["labels"], strict=True):
            if y != -100:
                total, count = total - torch.log_softmax(weight[i], -1)[y], count + 1
    return total, count


class Squares(Loss):
    """Its gradient is known: d/dlp of lp^2 is 2 lp."""

    def __init__(self, mean=False):
        self.mean, self.shapes = mean, []

    def __call__(self, inputs, outputs, *, scale=1.0, per_sample=None):
        assert outputs["logps"].requires_grad
        assert inputs["labels"].shape == outputs["logps"].shape == inputs["input_ids"].shape
        self.shapes.append(tuple(outputs["logps"].shape))
        if per_sample is not None:
            assert len(per_sample) == outputs["logps"].shape[0]
        loss = scale * outputs["logps"].square().sum()
        count = int((inputs["labels"] != -100).sum())
        return loss / count if self.mean else {"loss": loss, "num_tokens": count}
