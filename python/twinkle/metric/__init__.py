"""Metrics: numbers about training and evaluation. Write your own by subclassing Metric."""

from twinkle.metric.accuracy import Accuracy
from twinkle.metric.base import Metric
from twinkle.metric.builtin import LossMetric, TrainMetric
from twinkle.metric.completion import CompletionRewardMetric
from twinkle.metric.embedding import EmbeddingMetric
from twinkle.metric.policy import CISPOMetric, GRPOMetric, GSPOMetric, PPOMetric
from twinkle.metric.preference import DPOMetric, RewardMetric
from twinkle.metric.value import PPOValueMetric

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
