"""DatasetMeta: where rows come from."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from twinkle import checks
from twinkle.errors import require


@dataclass
class DatasetMeta:
    """The rows to load.

    dataset_id: a .jsonl, .json, .csv, .txt (a row {'text': line} for every line), .parquet, .arrow
    or .lance file (.JSONL is .jsonl), a directory of them, ms://owner/name, hf://owner/name, or
    owner/name, for which Hugging Face is asked first, then ModelScope. What exists locally is never
    looked for on a hub. Tables need pyarrow, which the extra `data` brings, .lance pylance.
    subset_name: of a hub's dataset.
    split: of a hub's dataset; of a local directory, the files with the split in their name. Where
    none has it, the usual 'train' is all files, and any other split is refused, as it is of a file
    that has it not in its name.
    data_slice: row indices, modulo the number of rows: range(1000) of 500 rows takes each twice.
    data: rows instead of an id: a list of dicts, a dict of columns, a callable that gives an
    iterable of dicts, or a `datasets` dataset.
    InvalidError: neither dataset_id nor data, another subset_name or split than these with data,
    a data_slice that is no iterable, an id or name of another kind, or a path that is not UTF-8.
    """

    dataset_id: str = ""
    subset_name: str = "default"
    split: str = "train"
    data_slice: Iterable | None = None
    data: Any = None

    def __post_init__(self):
        if self.dataset_id != "":
            self.dataset_id = checks.path("dataset: dataset_id", self.dataset_id)
        part = self.data_slice
        if part is not None:
            if not isinstance(part, Iterable) or isinstance(part, (str, bytes, dict, type)):
                checks.refuse("dataset: data_slice", part, "an iterable of row indices")
            # An iterator could be read only once.
            self.data_slice = part if isinstance(part, range) else list(part)
        require(
            bool(self.dataset_id) or self.data is not None,
            "dataset: DatasetMeta has neither a dataset_id nor data",
        )
        for name in ("subset_name", "split"):
            given = checks.text(f"dataset: {name}", getattr(self, name))
            require(
                self.data is None or given == getattr(DatasetMeta, name),
                f"dataset: {name} is {given!r}, but the rows are given as data, which has none: "
                "leave it out",
            )

    def get_id(self):
        """The name under which a Dataset keeps this source. Of rows in memory it is theirs while
        something refers to them, as the Dataset does."""
        name = self.dataset_id or f"memory-{id(self.data):x}"
        return f"{name.replace(os.sep, '_').replace('.', '_')}:{self.subset_name}:{self.split}"
