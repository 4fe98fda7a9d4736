"""DatasetMeta to rows: memory, aliases, local files and directories, hubs."""

import codecs
import itertools
from collections.abc import Mapping
from pathlib import Path

from twinkle import checks
from twinkle.core import core
from twinkle.dataset import columnar
from twinkle.dataset.meta import DatasetMeta
from twinkle.errors import InvalidError, NotFoundError, require
from twinkle.hub import HubOperation, aliases_of
from twinkle.preprocessor.base import map_col_to_row

CORE_EXTENSIONS = (".jsonl", ".json", ".csv", ".tsv", ".txt")  # the core reads these
_EXTENSIONS = (*CORE_EXTENSIONS, *columnar.TABLES)


def load(meta, **kwargs):
    """The core's Dataset of a DatasetMeta; kwargs go to a hub's loader. InvalidError: data_slice
    holds no integers, or rows are bad; NotFoundError: as local_path."""
    rows = _of_memory(meta.data) if meta.data is not None else _of_id(meta, kwargs)
    if meta.data_slice is None:
        return rows
    what = "dataset: a row index of data_slice"
    return rows.slice([checks.integer(what, value, most=2**63 - 1) for value in meta.data_slice])


def _of_memory(data):
    if isinstance(data, Mapping):
        return core().Dataset.of(map_col_to_row(data))
    if callable(data) and not isinstance(data, type):
        data = data()
    require(
        hasattr(data, "__iter__") and not isinstance(data, (str, bytes, type)),
        f"dataset: data is a {type(data).__name__}, it must be a list of dicts, a dict of columns "
        "or a callable that gives dicts",
    )
    return core().Dataset.of(data)


def _of_id(meta, kwargs):
    path = local_path(meta.dataset_id)
    if path is None:
        return core().Dataset.of(_from_hub(meta, kwargs), meta.dataset_id)
    parts = [_read(file) for file in _files(path, meta.split)]
    return parts[0] if len(parts) == 1 else core().Dataset.concat(parts)


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
        self._path = None if meta.data is not None else local_path(meta.dataset_id)

    def rows(self):
        """Pairs of a function that returns a row's place, and the row."""
        part = self._meta.data_slice
        rows = self._all()
        if part is None:
            return rows
        return itertools.islice(rows, part.start, max(part.stop, part.start), part.step)

    def _all(self):
        data = self._meta.data
        if self._path is not None:
            files = _files(self._path, self._meta.split)
            return itertools.chain.from_iterable(map(_lines, files))
        if data is None:
            options = {**self._kwargs, "streaming": True}
            return _placed(self._meta.dataset_id, _from_hub(self._meta, options))
        if isinstance(data, Mapping):
            return _placed("memory", map_col_to_row(data))
        return _placed("memory", data() if callable(data) else data)


def _placed(name, rows):
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            checks.refuse(f"dataset: {name} row {index}", row, "a dict")
        yield (lambda index=index: f"{name} row {index}"), dict(row)


def _lines(file):
    """The rows of a file; those of JSON lines and of text without reading it whole."""
    kind = columnar.extension(file)
    if kind == ".jsonl":
        with columnar.opened(file) as lines:
            for number, line in enumerate(lines, 1):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if text.strip():
                    where = f"{file} line {number}"
                    yield (lambda where=where: where), core().parse_line(text, str(file), number)
    elif kind == ".txt":
        for number, row in enumerate(columnar.lines(file), 1):
            yield (lambda number=number: f"{file} line {number}"), row
    else:
        rows = _read(file)
        for index in range(len(rows)):
            yield (lambda index=index: rows.where(index)), rows.row(index)


def _read(file):
    kind = columnar.extension(file)
    require(
        kind in _EXTENSIONS,
        f"dataset: {file} has extension {file.suffix!r}, it must be one of "
        + ", ".join(_EXTENSIONS),
    )
    if kind in columnar.TABLES:
        return core().Dataset.of(columnar.read(file), str(file))
    return core().Dataset.read(file)


def local_path(dataset_id):
    """The file or directory that an id stands for; None: it must come from a hub. NotFoundError: an
    alias of what does not exist, or neither a file here nor an id owner/name; InvalidError:
    TWINKLE_DATASET_ID_ALIASES holds something else than id=path."""
    aliases = aliases_of("TWINKLE_DATASET_ID_ALIASES", "dataset")
    name = dataset_id.partition("://")[2] or dataset_id
    for key in (dataset_id, name):
        if key in aliases:
            path = Path(aliases[key]).expanduser()
            if not path.exists():
                raise NotFoundError(
                    f"dataset: the alias of {key!r} is {aliases[key]!r}, which does not exist"
                )
            return path
    path = Path(dataset_id).expanduser()
    if path.exists():
        return path
    looks_local = dataset_id.startswith(("/", ".", "~")) or columnar.extension(path) in _EXTENSIONS
    if "://" not in dataset_id and (looks_local or dataset_id.count("/") != 1):
        raise NotFoundError(
            f"dataset: {dataset_id!r} is neither a file here nor an id of the form owner/name"
        )
    return None


def _files(path, split):
    """The data files at a path that have the split in their name; of the usual split, 'train', all
    where none has."""
    alone = not path.is_dir() or columnar.extension(path) == ".lance"
    files = [path]
    if not alone:
        files = sorted(file for file in path.iterdir() if columnar.extension(file) in _EXTENSIONS)
    if not files:
        raise NotFoundError(f"dataset: {path} holds no file of {', '.join(_EXTENSIONS)}")
    named = [file for file in files if split.lower() in file.stem.lower()]
    if named or split == DatasetMeta.split:
        return named or files
    require(
        not alone,
        f"dataset: split is {split!r}, which is not in the name of {path}: leave split out to read "
        "the file",
    )
    names = ", ".join(file.name for file in files[:8]) + (", ..." if len(files) > 8 else "")
    raise InvalidError(
        f"dataset: split is {split!r}, which is in no file's name in {path}; there are {names}: "
        "name one of them as dataset_id, or leave split out to read all"
    )


def _from_hub(meta, kwargs):
    return HubOperation.load_dataset(meta.dataset_id, meta.subset_name, meta.split, **kwargs)
