"""Datasets: rows from files, hubs or memory, preprocessed and encoded by the C++ core."""

from twinkle.dataset.dataset import Dataset
from twinkle.dataset.meta import DatasetMeta
from twinkle.dataset.noted import IterableDataset, LazyDataset
from twinkle.dataset.packing import IterablePackingDataset, PackingDataset

__all__ = [
    "Dataset",
    "DatasetMeta",
    "IterableDataset",
    "IterablePackingDataset",
    "LazyDataset",
    "PackingDataset",
]
