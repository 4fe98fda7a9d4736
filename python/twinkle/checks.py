"""Checks of arguments: each takes what it is ("model: interval") and a value, which it returns in
plain Python; or raises InvalidError with both, and what it must be."""

import contextlib
import math
import numbers
import os
import re
import reprlib
from collections.abc import Mapping

from twinkle.core import core
from twinkle.errors import InvalidError


class _Short(reprlib.Repr):
    def repr_int(self, x, level):
        try:
            return super().repr_int(x, level)
        except ValueError:  # more digits than Python writes
            return f"an integer of {x.bit_length()} bits"


def short(value):
    """A value for an error's text: some levels and some characters of its repr, which may have no
    end, or fail."""
    return _Short().repr(value)


def refuse(what, value, must):
    """Raises InvalidError: "WHAT is VALUE, it must be MUST"."""
    raise InvalidError(f"{what} is {short(value)}, it must be {must}")


def instance(what, value, kind, must):
    """A value of a class, or of one of several; must: says of which."""
    if not isinstance(value, kind):
        refuse(what, value, must)
    return value


def _is_integer(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _within(number, least, most, above=None):
    """True: a number, and no bound that is not None refuses it."""
    right = number is not None and (least is None or number >= least)
    return right and (above is None or number > above) and (most is None or number <= most)


def _bounded(noun, least, most, above=None):
    bound = "" if least is None else f" of at least {least}"
    bound = bound if above is None else f" above {above}"
    return noun + bound + ("" if most is None else f", at most {most}")


def integer(what, value, least=None, most=None, none=False):
    """An int; NumPy's too, True and False not."""
    if value is None and none:
        return None
    out = int(value) if _is_integer(value) else None
    if not _within(out, least, most):
        refuse(what, value, _bounded("an integer", least, most))
    return out


def number(what, value, least=None, above=None, most=None, infinite=False):
    """A float that is finite, unless `infinite`."""
    out = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            out = float(value)
    if math.isnan(out) or (math.isinf(out) and not infinite):
        out = None
    if not _within(out, least, most, above):
        refuse(what, value, _bounded("a number", least, most, above))
    return out


def share(what, value):
    """A float from 0 to 1."""
    out = number(what, value)
    if not 0 <= out <= 1:
        refuse(what, value, "a number from 0 to 1")
    return out


# A number of bytes as text, like Hugging Face's max_shard_size: KB, MB, ... are powers of 1000.
_UNITS = {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", 1)}


def file_size(what, value):
    """Bytes, at least 1, of an int or of a text such as '500MB' or '2.5GiB'; 0 of None."""
    if value is None:
        return 0
    size = value
    if isinstance(value, str):
        match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?) ?([KMGT]I?B)", value.upper())
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if not _is_integer(size) or not 1 <= size < 2**63:
        refuse(what, value, "bytes of at least 1, or a text such as '500MB' or '2GiB'")
    return int(size)


def is_on(variable):
    """True where an environment variable says so: 1, true, yes or on."""
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def flag(what, value):
    """True or False; NumPy's too."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        refuse(what, value, "True or False")
    return bool(value)


def one_of(what, value, choices):
    """One of several texts."""
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        refuse(what, value, f"{', '.join(others)} or {last}" if others else last)
    return value


def text(what, value, none=False, empty=False):
    """A str; '' only with `empty`, None only with `none`."""
    if value is None and none:
        return None
    if not isinstance(value, str) or (not value and not empty):
        refuse(what, value, "a text" + ("" if empty else " that is not empty"))
    return utf8(what, value)


def utf8(what, value):
    """A str, as it is. InvalidError: a lone surrogate in it, which no UTF-8 holds."""
    try:
        value.encode()
    except UnicodeEncodeError:
        core().refuse_surrogate(what, value)
    return value


def path(what, value):
    """A text of a path that is not empty, and that the system would look at. InvalidError: another
    thing; a NUL in it; more than 4095 bytes, or a name of more than 255 in it."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        refuse(what, value, "a path")
    if any("\ud800" <= c <= "\udfff" for c in text):
        must = "UTF-8: rename the file, or pass a link to it that has another name"
        refuse(what, value, must)
    parts = [("a name", 255, name) for name in text.split("/")]
    for kind, most, part in [("the whole", 4095, text), *parts]:
        size = len(part.encode(errors="surrogatepass"))
        if size > most:
            raise InvalidError(
                f"{what} is {reprlib.repr(value)}, {kind} of it has {size} bytes, it must have at "
                f"most {most}; shorten it"
            )
    return text


def mapping(what, value, none=False):
    """A dict with names as keys; {} for None where that is allowed."""
    if value is None and none:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        refuse(what, value, "a dict with names as keys")
    return value


def floats(what, value, must):
    """A float64 NumPy array of a list, an array, or a tensor on any device; C++ calls this, too.
    InvalidError: no numbers, or not of one shape."""
    import torch

    try:
        return torch.as_tensor(value).detach().double().cpu().numpy()
    except (TypeError, ValueError, RuntimeError):  # ragged, no numbers, too large
        refuse(what, value, must)


def ids(what, value):
    """A list of token ids. InvalidError: not one sequence of integers, or one above 2^63 - 1."""
    return core().ids(what, value)


def newest(name, revision):
    """Refuses any revision of a hub's model but the newest: ids are fetched without one.
    InvalidError: a revision that is not None."""
    if revision is not None:
        raise InvalidError(
            f"{name} is {revision!r}, this version fetches the newest only: give the directory of "
            "the revision that you want"
        )
