"""Files that the C++ readers do not read: tables in the formats of Arrow, by the package pyarrow,
which is imported when one is met."""

import importlib
from pathlib import Path

from twinkle.core import core
from twinkle.errors import InvalidError, NotAvailableError, require
from twinkle.preprocessor.base import map_row_to_col


def extension(path):
    """A file's extension in lower case: '.jsonl' of 'A.JSONL'."""
    return Path(path).suffix.lower()


def read(path):
    """The rows of a table, as dicts of its columns.

    InvalidError: a damaged file, or no regular one. NotAvailableError: a missing package.
    """
    kind = extension(path)
    if kind == ".lance":  # a data set of Lance's is a folder
        lance = package("lance", path)
        require(
            path.is_dir(),
            f"dataset: {path} is one file of a Lance data set: name the folder, whose name ends in "
            ".lance, or write the rows as .parquet",
        )
    else:
        core().check_file(path)
    arrow = package("pyarrow", path)
    import pyarrow.ipc
    import pyarrow.parquet

    try:
        if kind == ".lance":
            table = lance.dataset(str(path)).to_table()
        elif kind != ".arrow":
            table = pyarrow.parquet.read_table(path)
        else:
            with arrow.memory_map(str(path)) as source:
                begin = source.read(6)
                source.seek(0)
                # `datasets` writes streams, most others files.
                opened = arrow.ipc.open_file if begin == b"ARROW1" else arrow.ipc.open_stream
                table = opened(source).read_all()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise InvalidError(f"dataset: {path}: {error}") from error
    return table.to_pylist()


def save(rows, path, batch_size):
    """Writes the core's rows as Parquet, whole or not at all. Fields that a row lacks are null.

    InvalidError: a column of values that no single type of Arrow holds.
    """
    arrow = package("pyarrow", path)
    import pyarrow.parquet

    columns = {}
    for name, values in map_row_to_col(rows.rows(0, len(rows))).items():
        try:
            columns[name] = arrow.array(values)
        except (arrow.ArrowException, ValueError, TypeError) as error:
            raise InvalidError(
                f"dataset: column {name!r} has no single type that Parquet can hold ({error}): "
                "save as jsonl"
            ) from error
    require(columns, f"dataset: {path}: rows without fields cannot be Parquet, save as jsonl")
    file = arrow.BufferOutputStream()
    groups = min(batch_size, max(len(rows), 1))
    pyarrow.parquet.write_table(arrow.table(columns), file, row_group_size=groups)
    core().write_file(path, file.getvalue())


def package(name, path):
    """An imported package that a file needs. NotAvailableError: how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        wanted = {"lance": "pylance"}.get(name, name)
        raise NotAvailableError(
            f"dataset: {path} needs the package {name}, which is not installed: "
            f"pip install {wanted}"
        ) from None
