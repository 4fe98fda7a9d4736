"""Datasets: rows from files, hubs or memory, preprocessed and encoded by the C++ core."""

from twinkle.dataset.dataset import Dataset
from twinkle.dataset.meta import DatasetMeta

__all__ = ["Dataset", "DatasetMeta"]
