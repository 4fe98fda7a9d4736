"""DataLoader: batches as lists of dicts."""

from twinkle.dataloader.dataloader import DataLoader
from twinkle.dataloader.retry import RetrySampler

__all__ = ["DataLoader", "RetrySampler"]
