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
    path = local_path(meta)
    if path is None:
        rows = core().Dataset.of(_given(meta, kwargs), meta.dataset_id or "memory")
    else:
        parts = [_read(file) for file in _files(path, meta.split)]
        rows = parts[0] if len(parts) == 1 else core().Dataset.concat(parts)
    if meta.data_slice is None:
        return rows
    what = "dataset: a row index of data_slice"
    return rows.slice([checks.integer(what, value, most=2**63 - 1) for value in meta.data_slice])


def _given(meta, kwargs):
    """The rows that memory holds, or a hub gives."""
    data = meta.data
    if data is None:
        return _from_hub(meta, kwargs)
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
        rows = self._all()
        if part is None:
            return rows
        return itertools.islice(rows, part.start, max(part.stop, part.start), part.step)

    def _all(self):
        if self._path is not None:
            files = _files(self._path, self._meta.split)
            return itertools.chain.from_iterable(map(_lines, files))
        return self._placed(_given(self._meta, {**self._kwargs, "streaming": True}))

    def _placed(self, rows):
        for index, row in enumerate(rows):
            where = f"{self._meta.dataset_id or 'memory'} row {index}"
            if not isinstance(row, Mapping):
                checks.refuse(f"dataset: {where}", row, "a dict")
            yield where, dict(row)


def _lines(file):
    """The rows of a file with their places; JSON lines and text are not read whole."""
    kind = columnar.extension(file)
    if kind not in (".jsonl", ".txt"):
        rows = _read(file)
        yield from ((rows.where(index), rows.row(index)) for index in range(len(rows)))
        return
    with columnar.opened(file) as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file} line {number}"
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if kind == ".txt":
                yield where, {"text": _decoded(where, text)}
            elif text.strip():
                yield where, core().parse_line(text, str(file), number)


def _decoded(where, line):
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise InvalidError(f"dataset: {where}: it is not UTF-8 ({error})") from error


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
    files = [path] if alone else sorted(path.iterdir())
    files = [file for file in files if alone or columnar.extension(file) in _EXTENSIONS]
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
