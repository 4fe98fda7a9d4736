"""Rows as Python indexes them."""

from twinkle import checks
from twinkle.preprocessor.base import map_row_to_col


class Rows:
    """The core's rows, or others with len, row(index) and rows(begin, end): a row for an index, a
    dict of columns for a slice, a column for its name. seen: called with every row that is read, by
    index or in a loop.
    IndexError: no such row; KeyError: no row has such a column; InvalidError: a row is bad."""

    def __init__(self, rows, seen=None):
        self._rows, self._seen = rows, seen

    def __len__(self):
        return len(self._rows)

    def __iter__(self):
        return map(self._read, range(len(self._rows)))

    def __getitem__(self, index):
        rows = self._rows
        if isinstance(index, slice):
            return map_row_to_col(list(map(self._read, range(*index.indices(len(rows))))))
        if isinstance(index, str):
            all_rows = rows.rows(0, len(rows))
            if not any(index in row for row in all_rows):
                raise KeyError(f"dataset: no row has a field {index!r}")
            return [row.get(index) for row in all_rows]
        index = checks.integer("dataset: index", index)
        if not -len(rows) <= index < len(rows):
            raise IndexError(f"dataset: row {index} is outside the dataset of {len(rows)} rows")
        return self._read(index % len(rows))

    def _read(self, index):
        row = self._rows.row(index)
        if self._seen:
            self._seen(row)
        return row
