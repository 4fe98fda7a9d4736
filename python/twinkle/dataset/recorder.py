"""Recorder: rows written to a file as a training run reads them."""

import json
import tempfile
from pathlib import Path

from twinkle.core import core
from twinkle.dataset import columnar
from twinkle.errors import InvalidError, require

_FORMATS = {
    ".jsonl": "jsonl",
    ".json": "json",  # lines, too, as `datasets` writes it
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def format_of(path, format):
    """The format of a file: `format`, or by its extension. InvalidError: neither is known."""
    format = format or _FORMATS.get(columnar.extension(path), "")
    known = dict.fromkeys(_FORMATS.values())
    require(
        format in known,
        f"dataset: {path}: format is {format!r}, it must be one of {', '.join(known)}",
    )
    return format


def place_of(path):
    """Makes the folder of a file that is to be written. InvalidError: no file can be written there,
    or the path is a folder's."""
    try:
        require(not Path(path).is_dir(), f"dataset: path is {path!r}, a folder: name a file in it")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=Path(path).parent):
            pass
    except OSError as error:
        raise InvalidError(
            f"dataset: path is {path!r}, where no file can be written "
            f"({error.strerror}): name another place"
        ) from error


def write(rows, path, format, batch_size):
    """The core's rows into a file, whole or not at all."""
    if format == "parquet":
        columnar.save(rows, path, batch_size)
    else:
        rows.save(path, format)


class Recorder:
    """Keeps rows in PATH.partial.jsonl, `batch_size` at a time; close() makes PATH of them."""

    def __init__(self, path, format, batch_size):
        self.path, self._format, self._batch_size = Path(path), format, batch_size
        if format == "parquet":
            columnar.package("pyarrow", path)
        self._partial = self.path.with_name(self.path.name + ".partial.jsonl")
        self._file = self._partial.open("wb")
        self._lines = []

    def add(self, row):
        """Keeps one more row, which must be JSON. InvalidError: a text that is no UTF-8."""
        try:
            self._lines.append(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        except UnicodeEncodeError:
            core().Dataset.of([row], f"{self.path}")  # names the field
            raise
        if len(self._lines) >= self._batch_size:
            self._flush()

    def _flush(self):
        self._file.writelines(self._lines)
        self._file.flush()
        self._lines = []

    def close(self):
        """Writes what is kept, makes PATH of all rows, and removes PATH.partial.jsonl."""
        self._flush()
        self._file.close()
        write(core().Dataset.read(self._partial), str(self.path), self._format, self._batch_size)
        self._partial.unlink()
