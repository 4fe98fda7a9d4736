"""How a model's methods are called where it lives in workers: batches are cut by data rank, and
losses and norms, which are of the whole batch on every rank, come from the first."""

import functools

from twinkle.engine.batch import as_list
from twinkle.errors import require
from twinkle.remote.collect import join_rows
from twinkle.remote.dispatch import Rows, whole
from twinkle.remote.how import How, mark

_BATCH = How(dispatch=Rows(as_list, pairs=True), collect=join_rows)


def of_batch(function):
    """Decorates a method that takes inputs=. Its outputs stay in the workers, unless initialize()
    or the object says otherwise. InvalidError: the batch is given without its name."""

    @functools.wraps(function)
    def named(self, *unnamed, **kwargs):
        name = function.__name__
        require(not unnamed, f"model: {name} takes its arguments by name: {name}(inputs=...)")
        return function(self, **kwargs)

    return mark(named, _BATCH)


# Decorates a method that every rank does, with the same result.
of_all = functools.partial(mark, how=How(dispatch="all", collect="first"))
# The same of one whose named arguments are of the batch that a call before it was given; as
# at_once.
of_whole_batch = functools.partial(
    mark, how=How(dispatch=whole, collect="first", lazy_collect=False)
)
