"""How a method of a remote object is called: what remote_function notes on it."""

from collections.abc import Callable
from dataclasses import dataclass

EXECUTE = ("all", "first", "peer")
DISPATCH = ("slice", "all", "slice_dp")
COLLECT = ("none", "flatten", "mean", "avg", "sum", "first", "last_pp", "last_pp_first")


@dataclass(frozen=True)
class How:
    """remote_function's arguments."""

    dispatch: str | Callable = "slice"
    execute: str = "all"
    collect: str | Callable = "none"
    sync: bool = False
    lazy_collect: bool | None = None
    timeout: float | None = None


PLACEMENT = ("remote_group", "instance_id", "device_mesh")

# Python itself calls __len__ and __getitem__: so, where a class does not say otherwise.
ASKED_OF_ONE = How(dispatch="all", execute="first", collect="first", lazy_collect=False)
ITERATED = How(dispatch="all", collect="flatten")  # as ASKED_OF_ONE: each item of a loop


def mark(function, how):
    """Notes on the function how it is called."""
    function.__remote__ = how
    return function


def at_once(function):
    """Decorates a method that every worker does with the same result, where an error must come from
    the line that caused it."""
    return mark(function, How(dispatch="all", collect="first", lazy_collect=False))


def of_one(function):
    """Decorates a method that one worker answers for all."""
    return mark(function, ASKED_OF_ONE)


def how_of(cls, name):
    """The How of a method of the class, its own or the nearest base's that has one; None: the
    method is not remote."""
    for base in cls.__mro__:
        how = getattr(base.__dict__.get(name), "__remote__", None)
        if how is not None:
            return how
    return None


def remote_names(cls):
    """The names of the class's remote methods, sorted."""
    names = {name for base in cls.__mro__ for name in base.__dict__}
    return sorted(name for name in names if how_of(cls, name) is not None)
