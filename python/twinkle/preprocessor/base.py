"""Base classes for users. Both run in Python, on plain rows."""

from collections.abc import Mapping

from twinkle import checks
from twinkle.errors import InvalidError


def map_col_to_row(columns):
    """{'a': [1, 2]} to [{'a': 1}, {'a': 2}]. InvalidError: columns of different lengths."""
    if not isinstance(columns, Mapping) or not all(
        isinstance(column, (list, tuple)) for column in columns.values()
    ):
        checks.refuse("data: the columns", columns, "a dict of lists")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidError(f"data: columns have different lengths: {lengths}")
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def map_row_to_col(rows, keys=None):
    """[{'a': 1}, {'a': 2}] to {'a': [1, 2]}; None where a row lacks the key. keys: these alone."""
    if keys is None:
        keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in keys}


class Preprocessor:
    """Columns in, columns out: what is returned is set on the rows, whose other fields stay."""

    def __call__(self, rows):
        """rows: {field: list of values}. Returns the fields to set, of as many rows."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(columns)")

    map_col_to_row = staticmethod(map_col_to_row)
    map_row_to_col = staticmethod(map_row_to_col)


class DataFilter:
    """Keeps the rows for which it returns True."""

    def __call__(self, row):
        """row: a dict. Returns True or False: whether it stays."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(row)")


Filter = DataFilter
