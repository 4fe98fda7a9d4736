"""Classes over the preprocessors of the C++ core: a new one there needs no line here."""

import functools
import inspect

from twinkle.core import core
from twinkle.preprocessor.base import Preprocessor


class Builtin(Preprocessor):
    """A preprocessor of the core. Dataset.map runs it in C++ on all cores. InvalidError: a value of
    another type or out of range."""

    core_name = ""  # set by each class

    def __init__(self, *args, **kwargs):
        bound = self.__signature__.bind(*args, **kwargs)
        bound.apply_defaults()
        self.arguments = dict(bound.arguments)
        core().preprocess(self.core_name, self.arguments, [])  # checks them

    def __call__(self, rows):
        """Columns to columns: preprocess of each row."""
        return self.map_row_to_col([self.preprocess(row) for row in self.map_col_to_row(rows)])

    def preprocess(self, row):
        """The fields that are set on a row, a dict. InvalidError: a row of another form."""
        (made,) = core().preprocess(self.core_name, self.arguments, [row])
        return made

    def __repr__(self):
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{type(self).__name__}({arguments})"


@functools.cache
def classes():
    """{name: class} of all the core's preprocessors."""
    return {name: _make(name, *how) for name, how in core().preprocessors().items()}


def lookup(name, module):
    """For a module's __getattr__. AttributeError: not a built-in; the known ones are listed."""
    known = classes() if name.endswith("Processor") else {}
    if name not in known:
        there = f"; there are {', '.join(known)}" if known else ""
        raise AttributeError(f"module {module!r} has no attribute {name!r}{there}")
    return known[name]


def is_builtin(value):
    """True when calling `value` would do no more than the core does."""
    kind = type(value)
    return isinstance(value, Builtin) and all(
        getattr(kind, name) is getattr(Builtin, name) for name in ("__call__", "preprocess")
    )


def _make(name, defaults, about):
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(key, kind, default=value) for key, value in defaults.items()]
    given = ", ".join(f"{key}={value!r}" for key, value in defaults.items()) or "none"
    members = {
        "__module__": "twinkle.preprocessor",
        "__doc__": about or f"The core's {name}; arguments: {given}.",
        "__signature__": inspect.Signature(parameters),
        "core_name": name,
    }
    return type(name, (Builtin,), members)
