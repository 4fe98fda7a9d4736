"""Recorder: rows written to a file as a training run reads them."""

from pathlib import Path

from twinkle import checks
from twinkle.core import core
from twinkle.dataset import columnar

_FORMATS = ("jsonl", "json", "csv", "parquet")  # json is lines, too, as `datasets` writes it


class Recorder:
    """Writes rows to a file: write() all at once, or add() each, which keeps them in
    PATH.partial.jsonl, `batch_size` at a time, until close() makes PATH of them. Makes the folder.

    InvalidError: a path, format or batch_size of another kind; another format, or none and another
    extension; no file can be written there, or the path is a folder's. NotAvailableError: a missing
    package.
    """

    def __init__(self, path, format, batch_size):
        self._batch_size = checks.integer("dataset: batch_size", batch_size, least=1)
        self.path = Path(checks.path("dataset: path", path))
        format = checks.text("dataset: format", format, none=True, empty=True)
        suffix = columnar.extension(self.path)[1:]
        format = format or {"pq": "parquet"}.get(suffix, suffix)
        self._format = checks.one_of(f"dataset: {self.path}: format", format, _FORMATS)
        if self._format == "parquet":
            columnar.package("pyarrow", path)
        core().make_place(self.path)
        self._partial = self.path.with_name(self.path.name + ".partial.jsonl")
        self._lines = core().LineWriter(self._partial, min(self._batch_size, 2**63 - 1))

    def write(self, rows):
        """Writes the core's rows, whole or not at all."""
        if self._format == "parquet":
            columnar.save(rows, self.path, self._batch_size)
        else:
            rows.save(self.path, self._format)

    def add(self, row):
        """Keeps one more row as it is now. InvalidError: it has no JSON form."""
        self._lines.add(row)

    def close(self):
        """Writes what is kept, makes PATH of all rows, and removes PATH.partial.jsonl."""
        self._lines.flush()
        self.write(core().Dataset.read(self._partial))
        self._partial.unlink()
