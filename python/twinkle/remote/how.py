"""How a method of a remote object is called: what remote_function notes on it."""

from collections.abc import Callable
from dataclasses import dataclass

from twinkle import checks

EXECUTE = ("all", "first", "peer")
DISPATCH = ("slice", "all", "slice_dp")
COLLECT = ("none", "flatten", "mean", "avg", "sum", "first", "last_pp", "last_pp_first")
PLACEMENT = ("remote_group", "instance_id", "device_mesh")


@dataclass(frozen=True)
class How:
    """remote_function's arguments, which it notes on the method that it decorates. InvalidError: as
    remote_function."""

    dispatch: str | Callable = "slice"
    execute: str = "all"
    collect: str | Callable = "none"
    sync: bool = False
    lazy_collect: bool | None = None
    timeout: float | None = None

    def __post_init__(self):
        for name, words in (("dispatch", DISPATCH), ("collect", COLLECT)):
            if not callable(getattr(self, name)):
                checks.one_of(f"infra: {name}", getattr(self, name), words)
        checks.one_of("infra: execute", self.execute, EXECUTE)
        checks.flag("infra: sync", self.sync)
        if self.lazy_collect is not None:
            checks.flag("infra: lazy_collect", self.lazy_collect)
        if self.timeout is not None:
            checks.number("infra: timeout", self.timeout, above=0)

    def __call__(self, function):
        """Decorates a method."""
        if not callable(function):
            checks.refuse("infra: what remote_function decorates", function, "a function")
        function.__remote__ = self
        return function


# at_once decorates a method that every worker does with the same result, where an error must come
# from the line that caused it; of_one a method that one worker answers for all, as Python's own
# __len__ and __getitem__; ITERATED is of a loop's items.
at_once = How(dispatch="all", collect="first", lazy_collect=False)
of_one = How(dispatch="all", execute="first", collect="first", lazy_collect=False)
ITERATED = How(dispatch="all", collect="flatten")


def how_of(cls, name):
    """The How of a method of the class, its own or the nearest base's that has one; None: the
    method is not remote."""
    found = (getattr(vars(base).get(name), "__remote__", None) for base in cls.__mro__)
    return next(filter(None, found), None)
