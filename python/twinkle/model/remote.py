"""How a model's methods are called where it lives in workers: batches are cut by data rank, and
losses and norms, which are of the whole batch on every rank, come from the first."""

import functools

from twinkle.engine.batch import as_list
from twinkle.errors import InvalidError
from twinkle.remote.collect import join_rows
from twinkle.remote.dispatch import Rows, whole
from twinkle.remote.how import How, at_once, mark

__all__ = ["at_once", "of_all", "of_batch", "of_whole_batch"]

_ALL = How(dispatch="all", collect="first")
_BATCH = How(dispatch=Rows(as_list, pairs=True), collect=join_rows)
_WHOLE_BATCH = How(dispatch=whole, collect="first", lazy_collect=False)


def of_batch(function):
    """Decorates a method that takes inputs=. Its outputs stay in the workers, unless initialize()
    or the object says otherwise. InvalidError: the batch is given without its name."""

    @functools.wraps(function)
    def named(self, *unnamed, **kwargs):
        if unnamed:
            raise InvalidError(
                f"model: {function.__name__} takes its arguments by name: "
                f"{function.__name__}(inputs=...)"
            )
        return function(self, **kwargs)

    return mark(named, _BATCH)


def of_all(function):
    """Decorates a method that every rank does, with the same result."""
    return mark(function, _ALL)


def of_whole_batch(function):
    """Decorates a method whose named arguments are of the batch that a call before it was given;
    otherwise as at_once."""
    return mark(function, _WHOLE_BATCH)
