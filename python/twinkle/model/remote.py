"""How a model's methods are called where it lives in workers: batches are cut by data rank, and
losses and norms, which are of the whole batch on every rank, come from the first."""

import functools

from twinkle.engine.batch import as_list
from twinkle.errors import require
from twinkle.remote.collect import join_rows
from twinkle.remote.dispatch import Rows, whole
from twinkle.remote.how import How, at_once

__all__ = ["at_once", "of_all", "of_batch", "of_whole_batch"]

# of_all decorates a method that every rank does, with the same result; of_whole_batch, otherwise as
# at_once, one whose named arguments are of the batch that a call before it was given.
of_all = How(dispatch="all", collect="first")
of_whole_batch = How(dispatch=whole, collect="first", lazy_collect=False)
_BATCH = How(dispatch=Rows(as_list, pairs=True), collect=join_rows)


def of_batch(function):
    """Decorates a method that takes inputs=. Its outputs stay in the workers, unless initialize()
    or the object says otherwise. InvalidError: the batch is given without its name."""

    @functools.wraps(function)
    def named(self, *unnamed, **kwargs):
        name = function.__name__
        require(not unnamed, f"model: {name} takes its arguments by name: {name}(inputs=...)")
        return function(self, **kwargs)

    return _BATCH(named)
