"""Datasets: rows from files, hubs or memory, preprocessed and encoded by the C++ core."""

from twinkle.dataset.dataset import Dataset
from twinkle.dataset.iterable import IterableDataset
from twinkle.dataset.lazy import LazyDataset
from twinkle.dataset.meta import DatasetMeta
from twinkle.errors import later

__all__ = ["Dataset", "DatasetMeta", "IterableDataset", "LazyDataset"]

_PACKING = "packed rows (the engine packs what a Dataset gives by itself)"
__getattr__ = later(
    __name__,
    {
        "PackingDataset": _PACKING,
        "IterablePackingDataset": _PACKING,
    },
)
