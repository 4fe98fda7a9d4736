"""Recorder: rows written to a file as a training run reads them."""

import json
import tempfile
from pathlib import Path

from twinkle import checks
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


class Recorder:
    """Writes rows to a file: write() all at once, or add() each, which keeps them in
    PATH.partial.jsonl, `batch_size` at a time, until close() makes PATH of them.

    InvalidError: a path, format or batch_size of another kind; another format, or none and another
    extension. NotAvailableError: a missing package.
    """

    def __init__(self, path, format, batch_size):
        self._batch_size = checks.integer("dataset: batch_size", batch_size, least=1)
        self.path = Path(checks.path("dataset: path", path))
        format = checks.text("dataset: format", format, none=True, empty=True)
        self._format = format or _FORMATS.get(columnar.extension(self.path), "")
        known = dict.fromkeys(_FORMATS.values())
        require(
            self._format in known,
            f"dataset: {self.path}: format is {self._format!r}, it must be one of "
            + ", ".join(known),
        )
        if self._format == "parquet":
            columnar.package("pyarrow", path)
        self._partial = self.path.with_name(self.path.name + ".partial.jsonl")
        self._lines, self._mode = [], "wb"

    def begin(self):
        """Makes the folder. InvalidError: no file can be written there, the path is a folder's."""
        what = f"dataset: path is {str(self.path)!r}"
        require(not self.path.is_dir(), f"{what}, a folder: name a file in it")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass
        except OSError as error:
            raise InvalidError(
                f"{what}, where no file can be written ({error.strerror}): name another place"
            ) from error

    def write(self, rows):
        """Writes the core's rows, whole or not at all."""
        if self._format == "parquet":
            columnar.save(rows, str(self.path), self._batch_size)
        else:
            rows.save(str(self.path), self._format)

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
        with self._partial.open(self._mode) as file:
            file.writelines(self._lines)
        self._lines, self._mode = [], "ab"

    def close(self):
        """Writes what is kept, makes PATH of all rows, and removes PATH.partial.jsonl."""
        self._flush()
        self.write(core().Dataset.read(self._partial))
        self._partial.unlink()
