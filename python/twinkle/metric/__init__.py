"""Metrics: numbers about training and evaluation. Write your own by subclassing Metric."""

from twinkle.errors import later
from twinkle.metric.accuracy import Accuracy
from twinkle.metric.base import Metric
from twinkle.metric.builtin import LossMetric, TrainMetric

__all__ = ["Accuracy", "LossMetric", "Metric", "TrainMetric"]

__getattr__ = later(
    __name__,
    {
        "DPOMetric": "preference learning",
        "EmbeddingMetric": "embedding models",
        "PPOValueMetric": "a value head",
        **dict.fromkeys(
            ("CISPOMetric", "CompletionRewardMetric", "GRPOMetric", "GSPOMetric", "PPOMetric"),
            "reinforcement learning",
        ),
    },
)
