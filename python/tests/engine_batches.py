"""Batches drawn from a seed, and an adapter's config, for tests of twinkle.engine."""

import numpy as np

from twinkle import LoraConfig

LORA = LoraConfig(r=4, target_modules="all-linear")


def features(lengths, seed=0, vocab=300):
    rng = np.random.default_rng(seed)
    out = []
    for length in lengths:
        ids = rng.integers(3, vocab, length)
        labels = np.append(ids[1:], -100)
        labels[: length // 3] = -100
        out.append({"input_ids": ids, "labels": labels})
    return out


BATCH = features([5, 17, 9])
