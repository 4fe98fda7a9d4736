"""Which rows of a larger batch a process has got, where a call cut it, and which arguments."""

from contextlib import contextmanager
from contextvars import ContextVar

_first = ContextVar("first_row", default=None)
_cut = ContextVar("cut_arguments", default=None)


@contextmanager
def rows_from(first, cut=None):
    """In its block: the rows of a call are those of the whole batch from `first` on. cut: as
    cut_arguments gives it."""
    tokens = _first.set(first), _cut.set(cut)
    try:
        yield
    finally:
        _first.reset(tokens[0])
        _cut.reset(tokens[1])


def first_row():
    """Which row of the whole batch is the first of this process; None: nobody has cut it."""
    return _first.get()


def cut_arguments():
    """{name: whether this process has a piece of it, or, of a dict, the same of each entry} of the
    named arguments of a call, by whoever has the whole batch; None: nobody has cut it."""
    return _cut.get()
