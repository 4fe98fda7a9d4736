"""DatasetMeta to rows: memory, aliases, local files and directories, hubs."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from twinkle import checks
from twinkle.core import core
from twinkle.dataset import columnar
from twinkle.errors import NotFoundError, require
from twinkle.hub import HubOperation, aliases_of
from twinkle.preprocessor.base import map_col_to_row


def load(meta, **kwargs):
    """The core's Dataset of a DatasetMeta; kwargs go to a hub's loader. InvalidError: data_slice
    holds no integers, or rows are bad; NotFoundError: as local_path."""
    path = local_path(meta)
    if path is None:
        rows = core().Dataset.of(_given(meta, kwargs), meta.dataset_id or "memory")
    else:
        parts = [_read(file) for file in core().data_files(path, meta.split)]
        rows = parts[0] if len(parts) == 1 else core().Dataset.concat(parts)
    if meta.data_slice is None:
        return rows
    what = "dataset: a row index of data_slice"
    return rows.slice([checks.integer(what, value, most=2**63 - 1) for value in meta.data_slice])


def _given(meta, kwargs):
    """The rows that memory holds, or a hub gives."""
    data = meta.data
    if data is None:
        return HubOperation.load_dataset(meta.dataset_id, meta.subset_name, meta.split, **kwargs)
    if isinstance(data, Mapping):
        return map_col_to_row(data)
    if callable(data) and not isinstance(data, type):
        data = data()
    require(
        hasattr(data, "__iter__") and not isinstance(data, (str, bytes, type)),
        f"dataset: data is a {type(data).__name__}, it must be a list of dicts, a dict of columns "
        "or a callable that gives dicts",
    )
    return data


class Stream:
    """A source that is read anew by every rows(). InvalidError: a data_slice that is neither None
    nor an increasing range from 0 or above; NotFoundError: as local_path."""

    def __init__(self, meta, kwargs):
        self._meta, self._kwargs = meta, kwargs
        part = meta.data_slice
        require(
            part is None or (isinstance(part, range) and part.start >= 0 and part.step > 0),
            f"dataset: data_slice is {part!r}, for a stream it must be an increasing range",
        )
        self._path = local_path(meta)

    def rows(self):
        """Pairs of a row's place and the row."""
        part = self._meta.data_slice
        if self._path is None:
            rows = self._placed(_given(self._meta, {**self._kwargs, "streaming": True}))
        else:
            files = core().data_files(self._path, self._meta.split)
            rows = itertools.chain.from_iterable(map(_rows_of, files))
        if part is None:
            return rows
        return itertools.islice(rows, part.start, max(part.stop, part.start), part.step)

    def _placed(self, rows):
        for index, row in enumerate(rows):
            where = f"{self._meta.dataset_id or 'memory'} row {index}"
            checks.instance(f"dataset: {where}", row, Mapping, "a dict")
            yield where, dict(row)


def _rows_of(file):
    """The rows of a file with their places; JSON lines and text are not read whole."""
    if core().kind_of_data(file) == "lines":
        return core().LineRows(file)
    rows = _read(file)
    return ((rows.where(index), rows.row(index)) for index in range(len(rows)))


def _read(file):
    if core().kind_of_data(file) == "table":
        return core().Dataset.of(columnar.read(file), str(file))
    return core().Dataset.read(file)


def local_path(meta):
    """The file or directory that a DatasetMeta's id stands for; None: rows are in memory, or must
    come from a hub. NotFoundError: an alias of what does not exist, or neither a file here nor an
    id owner/name; InvalidError: TWINKLE_DATASET_ID_ALIASES holds something else than id=path."""
    dataset_id = meta.dataset_id
    if meta.data is not None:
        return None
    aliases = aliases_of("TWINKLE_DATASET_ID_ALIASES", "dataset")
    alias = aliases.get(dataset_id) or aliases.get(dataset_id.partition("://")[2])
    path = Path(alias or dataset_id).expanduser()
    if path.exists():
        return path
    if alias:
        raise NotFoundError(
            f"dataset: the alias of {dataset_id!r} is {alias!r}, which does not exist"
        )
    looks_local = dataset_id.startswith(("/", ".", "~")) or core().kind_of_data(path)
    if "://" not in dataset_id and (looks_local or dataset_id.count("/") != 1):
        raise NotFoundError(
            f"dataset: {dataset_id!r} is neither a file here nor an id of the form owner/name"
        )
    return None
