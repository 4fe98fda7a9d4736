"""Losses: functions of per-token log-probabilities. Write your own by subclassing Loss."""

from twinkle.loss.base import FunctionLoss, Loss
from twinkle.loss.cross_entropy import CrossEntropyLoss

__all__ = ["CrossEntropyLoss", "FunctionLoss", "Loss"]
