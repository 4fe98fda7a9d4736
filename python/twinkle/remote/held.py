"""What a worker holds: the objects and results of its rank, by key. Arguments that name them are
looked up here when they arrive."""

from twinkle.remote.collect import join

table = {}  # of this worker process


def own(key):
    """What this worker holds under a key."""
    return table[key]


def given(value, place):
    """The value that the driver has, or this worker's piece of it."""
    return _piece(value, place)


def joined(refs, collect, place):
    """The whole of several workers' parts, or this worker's piece of it."""
    import ray

    outcomes = ray.get(refs)
    for outcome in outcomes:
        outcome.check()
    return _piece(join(collect, [outcome.value for outcome in outcomes]), place)


def _piece(value, place):
    from twinkle.remote.dispatch import cut

    return value if place is None else cut(value, *place)
