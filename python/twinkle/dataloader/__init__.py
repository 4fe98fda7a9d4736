"""DataLoader: batches as lists of dicts."""

from twinkle.dataloader.dataloader import DataLoader
from twinkle.errors import later

__all__ = ["DataLoader"]

__getattr__ = later(
    __name__, {"RetrySampler": "rows that are read again after an error, as a stream's may be"}
)
