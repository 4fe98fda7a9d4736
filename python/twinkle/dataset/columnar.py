"""Files that the C++ readers do not read: tables in the formats of Arrow, by the package pyarrow,
which is imported when one is met."""

import contextlib
import importlib
import os
import stat
import tempfile
from pathlib import Path

from twinkle.errors import InvalidError, NotAvailableError, require
from twinkle.preprocessor.base import map_row_to_col

TABLES = (".parquet", ".pq", ".arrow", ".lance")


def extension(path):
    """A file's extension in lower case: '.jsonl' of 'A.JSONL'."""
    return Path(path).suffix.lower()


def opened(path):
    """The file, to be read as bytes. InvalidError: it is no regular file, whose reading might never
    end, or cannot be opened."""
    try:
        # open() takes the descriptor over, or closes it.
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    except OSError as error:
        raise InvalidError(f"dataset: {path} cannot be opened ({error.strerror})") from error
    mode = os.fstat(file.fileno()).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        kind = "a FIFO" if stat.S_ISFIFO(mode) else "a device"
        raise InvalidError(f"dataset: {path} is {kind}, it must be a regular file")
    return file


def read(path):
    """The rows of a table, as dicts of its columns.

    InvalidError: a damaged file; and as opened. NotAvailableError: a missing package.
    """
    if extension(path) != ".lance":  # Lance's data set is a folder
        opened(path).close()
    table = _lance(path) if extension(path) == ".lance" else _arrow(path)
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
    with _replacing(path) as partial:
        groups = min(batch_size, max(len(rows), 1))
        pyarrow.parquet.write_table(arrow.table(columns), partial, row_group_size=groups)


def _arrow(path):
    arrow = package("pyarrow", path)
    import pyarrow.ipc
    import pyarrow.parquet

    try:
        if extension(path) != ".arrow":
            return pyarrow.parquet.read_table(path)
        with arrow.memory_map(str(path)) as source:
            begin = source.read(6)
            source.seek(0)
            # `datasets` writes streams, most others files.
            opened = arrow.ipc.open_file if begin == b"ARROW1" else arrow.ipc.open_stream
            return opened(source).read_all()
    except (arrow.ArrowException, OSError) as error:
        raise InvalidError(f"dataset: {path}: {error}") from error


def _lance(path):
    lance = package("lance", path)
    require(
        Path(path).is_dir(),
        f"dataset: {path} is one file of a Lance data set: name the folder, whose name ends in "
        ".lance, or write the rows as .parquet",
    )
    try:
        return lance.dataset(str(path)).to_table()
    except (OSError, ValueError) as error:
        raise InvalidError(f"dataset: {path}: {error}") from error


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


@contextlib.contextmanager
def _replacing(path):
    """A temporary name next to `path`; its file replaces `path` if all went well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
    os.close(handle)
    try:
        yield partial
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)
