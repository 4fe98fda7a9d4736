"""Batches for losses: drawn log-probabilities at ragged labels, and loops over them in float64."""

import numpy as np
import torch

LABELS = [
    [-100, 4, 5, -100, 6, -100],
    [7, 8, 9, 1, 2, 3],
    [-100, 5, -100, -100, -100, -100],  # 3 positions, padded
    [-100, 2, 3, 4, -100, -100],  # 5 positions
]
LENGTHS = [6, 6, 3, 5]
COUNTS = [3, 6, 1, 3]


def batch():
    """inputs of 4 sequences, padded to 6."""
    mask = torch.tensor([[int(t < n) for t in range(6)] for n in LENGTHS])
    return {"labels": torch.tensor(LABELS), "attention_mask": mask}


def drawn_logps(seed=0, scale=1.0):
    """Log-probabilities of the labels of batch(), 0 elsewhere, which need a gradient."""
    rng = np.random.default_rng(seed)
    values = torch.tensor(-rng.gamma(1.0, scale, (4, 6)), dtype=torch.float32)
    return torch.where(batch()["labels"] != -100, values, 0.0).requires_grad_()


def ragged(values):
    """The entries of a [4, 6] tensor at the labels, a list for each sequence."""
    mask = batch()["labels"] != -100
    return [row[m].tolist() for row, m in zip(values.detach(), mask, strict=True)]


def by_hand(function, *arrays):
    """[[function(i, entries of label t of sequence i, ...)]] in float64."""
    rows = [ragged(a) for a in arrays]
    return [
        [function(i, *map(np.float64, entries)) for entries in zip(*parts, strict=True)]
        for i, parts in enumerate(zip(*rows, strict=True))
    ]


def gradient(loss, logps):
    return torch.autograd.grad(loss, logps, retain_graph=True)[0]
