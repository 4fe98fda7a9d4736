"""DataLoader: batches as lists of dicts."""

from twinkle.dataloader.dataloader import DataLoader

__all__ = ["DataLoader"]
