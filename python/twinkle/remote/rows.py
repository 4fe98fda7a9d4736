"""Which rows of a larger batch a process has got, where a call cut it."""

from contextlib import contextmanager
from contextvars import ContextVar

_first = ContextVar("first_row", default=None)


@contextmanager
def rows_from(first):
    """In its block: the rows of a call are those of the whole batch from `first` on."""
    token = _first.set(first)
    try:
        yield
    finally:
        _first.reset(token)


def first_row():
    """Which row of the whole batch is the first of this process; None: nobody has cut it."""
    return _first.get()
