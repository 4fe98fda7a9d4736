"""Metrics: numbers about training and evaluation. Write your own by subclassing Metric."""

from twinkle.metric.base import Metric
from twinkle.metric.completion import CompletionRewardMetric
from twinkle.metric.engine import Accuracy, EmbeddingMetric, LossMetric, RewardMetric, TrainMetric
from twinkle.metric.labels import DPOMetric, PPOValueMetric
from twinkle.metric.policy import CISPOMetric, GRPOMetric, GSPOMetric, PPOMetric

__all__ = [
    "Accuracy",
    "CISPOMetric",
    "CompletionRewardMetric",
    "DPOMetric",
    "EmbeddingMetric",
    "GRPOMetric",
    "GSPOMetric",
    "LossMetric",
    "Metric",
    "PPOMetric",
    "PPOValueMetric",
    "RewardMetric",
    "TrainMetric",
]
