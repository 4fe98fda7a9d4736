"""Texts and YAML values to the types of fields."""

import json
import types
import typing

from twinkle import checks
from twinkle.cli.groups import Limit
from twinkle.errors import InvalidError

_TRUE, _FALSE, _NONE = (
    ("true", "yes", "on", "1"),
    ("false", "no", "off", "0"),
    ("none", "null", "~"),
)


def is_boolean_word(text):
    """True for a text that stands for True or False: yes, off, 1, ..."""
    return text.lower() in _TRUE + _FALSE


def typed(what, value, annotation):
    """`value` as the field's type. InvalidError: it cannot be; the text names `what`."""
    optional = type(None) in typing.get_args(annotation)
    if isinstance(annotation, types.UnionType):
        annotation = next(a for a in typing.get_args(annotation) if a is not type(None))
    if value is None or (isinstance(value, str) and value.lower() in _NONE):
        if optional:
            return None
        if value is None:
            checks.refuse(what, value, "given")
    if typing.get_origin(annotation) is typing.Literal:
        known = typing.get_args(annotation)
        if value not in known:
            checks.refuse(what, value, f"one of {', '.join(known)}")
        return value
    return _CONVERT[annotation](what, value)


def guessed(text):
    """The value of a flag that no group knows: a number, True, False, None, a list or a text."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    low = text.lower()
    if low in _TRUE + _FALSE:
        return low in _TRUE
    if low in _NONE:
        return None
    return [guessed(part.strip()) for part in text.split(",")] if "," in text else text


def _boolean(what, value):
    if isinstance(value, str) and is_boolean_word(value):
        return value.lower() in _TRUE
    return checks.flag(what, value)


def _integer(what, value):
    if isinstance(value, str):
        try:
            value = float(value) if "e" in value.lower() else int(value)
        except ValueError:
            checks.refuse(what, value, "an integer")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return checks.integer(what, value)


def _number(what, value, infinite=False):
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            checks.refuse(what, value, "a number")
    return checks.number(what, value, infinite=infinite)


def _limit(what, value):
    return _number(what, value, infinite=True)


def _text(what, value):
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)  # YAML reads a revision of digits as a number
    return checks.text(what, value, empty=True)


def _list(what, value):
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        checks.refuse(what, value, "a list, or texts with commas between them")
    return value


def _dict(what, value):
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InvalidError(f"{what} is {value!r}, it must be a JSON object") from error
    return dict(checks.mapping(what, value))


_CONVERT = {
    bool: _boolean, int: _integer, float: _number, Limit: _limit, str: _text, list: _list,
    dict: _dict,
}  # fmt: skip
