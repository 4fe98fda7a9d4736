"""What a worker holds: the objects and results of its rank, by key. Arguments that name them are
looked up here when they arrive."""

from twinkle.errors import InternalError, InvalidError, require
from twinkle.remote.collect import join
from twinkle.remote.gone import not_arrived, why_gone

table = {}  # of this worker process


def own(key):
    """What this worker holds under a key."""
    return table[key]


def given(value, place):
    """The value that the driver has, or this worker's piece of it."""
    return _piece(value, place)


def alone(key, collect, place):
    """The whole, or a piece, of what the only worker of a group holds under a key."""
    return _piece(join(collect, [table[key]]), place)


def joined(refs, collect, place, group):
    """The whole of the parts of a group's workers, or this worker's piece of it. refs: to their
    Outcomes, whose values are references. InternalError: one of them is gone, or has not made its
    part; InvalidError: that cannot be pickled."""
    import ray

    try:
        outcomes = ray.get(refs)
        for outcome in outcomes:
            outcome.check(group)
        values = ray.get([outcome.value for outcome in outcomes])
    except ray.exceptions.RayError as error:
        if cause := not_arrived(error):
            raise InvalidError(
                f"infra: a result of group {group} cannot be sent: {cause}"
            ) from None
        raise InternalError(
            f"infra: a worker of group {group}, whose result was asked for, {why_gone(error)}"
        ) from None
    return _piece(join(collect, values), place)


def _piece(value, place):
    from twinkle.remote.dispatch import cut, num_rows

    if place is None:
        return value
    rows = num_rows(value, place[2])
    require(
        rows is None or rows >= place[1],
        f"infra: a result that is passed on has {rows} entries for {place[1]} ranks, each must get "
        "one at least",
    )
    return cut(value, *place)
