"""PPOValueMetric against NumPy over all labels at once."""

import math

import numpy as np
import pytest
import torch

from twinkle.errors import InvalidError
from twinkle.metric import PPOValueMetric

LABELS = torch.tensor([[-100, 4, 5, 6], [7, 8, -100, -100]])
MASK = LABELS != -100


def drawn(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.3, 1, 5) for _ in range(3)]


def wide(flat):
    out = torch.full((2, 4), 9.0, dtype=torch.float64)
    out[MASK] = torch.as_tensor(flat)
    return out


def accumulate(metric, values, old, returns, **kwargs):
    metric.accumulate(
        {"labels": LABELS},
        {"values": wide(values).float(), "loss": 0.1},
        old_values=wide(old),
        returns=[returns[:3].tolist(), returns[3:].tolist()],
        lr=1e-3,
        **kwargs,
    )


@pytest.mark.parametrize("given", [False, True])
def test_its_numbers_are_those_of_all_labels_since_the_last_calculate(given):
    metric, parts, advantages = PPOValueMetric(epsilon=0.5), [], []
    for seed in (1, 2, 3):
        values, old, returns = drawn(seed)
        advantages.append(drawn(seed + 10)[0] if given else returns - old)
        extra = {"advantages": wide(advantages[-1])} if given else {}
        accumulate(metric, values, old, returns, **extra)
        parts.append((values, old, returns))
    values, old, returns = (np.concatenate(x) for x in zip(*parts, strict=True))
    clipped = np.clip(values, old - 0.5, old + 0.5)
    expected = {
        "train/value_mean": values.mean(),
        "train/return_mean": returns.mean(),
        "train/value_clip_ratio": np.mean(np.abs(clipped - returns) > np.abs(values - returns)),
        "train/explained_variance": 1 - np.var(returns - values) / np.var(returns),
        "train/advantage_mean": np.mean(advantages),
        "train/advantage_std": np.std(advantages),
    }
    assert 0 < expected["train/value_clip_ratio"] < 1
    assert metric.calculate() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    metric.reset()
    assert metric.calculate() == {}


def test_without_values_or_returns_there_is_nothing_to_tell():
    metric = PPOValueMetric()
    metric.accumulate({"labels": LABELS}, {"values": wide(drawn(1)[0])}, lr=1.0)
    metric.accumulate({"labels": LABELS}, {"logps": LABELS}, returns=[1, 2], old_values=[1, 2])
    assert metric.calculate() == {}
    metric.accumulate(
        {"labels": LABELS * 0 - 100}, {"values": LABELS}, returns=[1, 2], old_values=[1, 2]
    )
    assert metric.calculate() == {}


def test_equal_returns_explain_nothing():
    metric = PPOValueMetric()
    accumulate(metric, drawn(1)[0], drawn(1)[1], np.ones(5))
    assert math.isnan(metric.calculate()["train/explained_variance"])


def test_a_clip_that_cannot_be_is_refused():
    with pytest.raises(InvalidError, match="metric: epsilon is 0"):
        PPOValueMetric(epsilon=0)
