"""The exceptions of Twinkle. Errors of the C++ engine arrive as these, text unchanged."""

import difflib
import functools
import inspect


class TwinkleError(Exception):
    """Base of all errors that Twinkle raises; the text names field, value and limit."""

    def __str__(self):
        return str(self.args[0]) if self.args else ""


class InvalidError(TwinkleError, ValueError):
    """The caller passed something that cannot be right."""


class NoLengthError(InvalidError, TypeError, NotImplementedError):
    """Raised by len() of a stream; list() accepts a TypeError as an answer."""


class NotFoundError(TwinkleError, FileNotFoundError, LookupError):
    """A file, a model, an adapter or a name does not exist."""


class ConflictError(TwinkleError):
    """The request contradicts what exists: a name that is taken, a second full run."""


class BusyError(TwinkleError):
    """The engine cannot take the request now, or is closed."""


class InternalError(TwinkleError, RuntimeError):
    """Something that should not happen: a fault of Twinkle, or of the machine."""


class NotAvailableError(TwinkleError, ImportError):
    """Something that this version does not have yet, or a missing package."""


def require(ok, *parts):
    """Raises InvalidError of the joined parts unless `ok`."""
    if not ok:
        raise InvalidError("".join(str(part) for part in parts))


def later(module, needs):
    """A module's __getattr__ for names that this version does not have: NotAvailableError with what
    they need. needs: {name: what}."""

    def missing(name):
        if name in needs:
            raise NotAvailableError(
                f"{module}: {name} needs {needs[name]}, which this version does not have"
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing


def absent(module, name, needs):
    """A class that can be imported; making one raises NotAvailableError with what it needs."""

    def refuse(cls, *args, **kwargs):
        raise NotAvailableError(f"{module}: {name} needs {needs}")

    doc = f"NotAvailableError, always: it needs {needs}."
    return type(name, (), {"__new__": refuse, "__doc__": doc, "__module__": f"twinkle.{module}"})


def refuse_unknown(where, kwargs, known=(), others=None):
    """Raises InvalidError that names the keyword arguments which are not among `known`, and those
    that were probably meant. others: {what other libraries call one: its name here}."""
    unknown, others = sorted(map(str, set(kwargs) - set(known))), others or {}
    if not unknown:
        return
    near = []
    for one in unknown:
        near += [others[one]] if one in others else difflib.get_close_matches(one, known, n=1)
    take = f"; it takes {', '.join(sorted(known))}" if known else ""
    meant = f". Did you mean {', '.join(near)}?" if near else ""
    unknown = ", ".join(map(repr, unknown))
    raise InvalidError(f"{where}: unknown argument {unknown}{take}{meant}")


def names_arguments(where, **others):
    """Decorates a class whose constructor then refuses an unknown argument as refuse_unknown does,
    in place of Python's TypeError."""

    def decorate(cls):
        init = cls.__init__
        known = [name for name in inspect.signature(init).parameters if name != "self"]

        @functools.wraps(init)
        def named(self, *args, **kwargs):
            refuse_unknown(where, kwargs, known, others)
            init(self, *args, **kwargs)

        cls.__init__ = named
        return cls

    return decorate
