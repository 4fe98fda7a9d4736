"""Metrics: numbers about training and evaluation. Write your own by subclassing Metric."""

from twinkle.metric.accuracy import Accuracy
from twinkle.metric.base import Metric
from twinkle.metric.builtin import LossMetric, TrainMetric

__all__ = ["Accuracy", "LossMetric", "Metric", "TrainMetric"]
