"""Batches that the scripts of tests/parallel and tests/ray train on."""

import numpy as np


def batch_of(step, rows=8):
    """Rows of 5 to 39 drawn ids, the same in every process."""
    rng = np.random.default_rng(step)
    out = []
    for _ in range(rows):
        ids = rng.integers(3, 120, int(rng.integers(5, 40)))
        out.append({"input_ids": ids, "labels": np.append(ids[1:], -100)})
    return out
