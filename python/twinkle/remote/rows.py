"""The place of a process's rows in a larger batch, where a call cut it, and the arguments cut."""

from contextlib import contextmanager
from contextvars import ContextVar

_rows = ContextVar("rows", default=(None, None))


@contextmanager
def rows_from(first, cut=None):
    """In its block: the rows of a call are those of the whole batch from `first` on. cut: as
    cut_arguments gives it."""
    token = _rows.set((first, cut))
    try:
        yield
    finally:
        _rows.reset(token)


def first_row():
    """The place of this process's first row in the whole batch; None: nobody has cut it."""
    return _rows.get()[0]


def cut_arguments():
    """{name: whether this process has a piece of it, or, of a dict, the same of each entry} of the
    named arguments of a call, by whoever has the whole batch; None: nobody has cut it."""
    return _rows.get()[1]
