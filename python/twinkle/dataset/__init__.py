"""Datasets: rows from files, hubs or memory, preprocessed and encoded by the C++ core."""

from twinkle.dataset.dataset import Dataset
from twinkle.dataset.iterable import IterableDataset
from twinkle.dataset.lazy import LazyDataset
from twinkle.dataset.meta import DatasetMeta
from twinkle.dataset.packing import IterablePackingDataset, PackingDataset

__all__ = [
    "Dataset",
    "DatasetMeta",
    "IterableDataset",
    "IterablePackingDataset",
    "LazyDataset",
    "PackingDataset",
]
