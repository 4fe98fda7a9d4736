"""Values of wrong types and sizes, and the check that a call refuses them."""

import math

import pytest

from twinkle.errors import TwinkleError

NAN, INF = math.nan, math.inf
VALUES = {
    "None": None, "5": 5, "-1": -1, "0": 0, "2**70": 2**70, "1.5": 1.5, "nan": NAN, "inf": INF,
    "True": True, "text": "x", "empty text": "", "list": [], "dict": {}, "list of None": [None],
    "object": object(), "class": int, "bytes": b"x", "list of lists": [[1], [2, 3]],
}  # fmt: skip

SIZES = {"5", "2**70"}  # integers of at least 1
NONE = {"None"}
COUNTS = SIZES | {"0"}
POSITIVE = {"5", "1.5", "2**70"}
NUMBERS = POSITIVE | {"0"}


def refuses(name, call, right):
    """Calls `call` with every value but those whose names are in `right`: each must raise an error
    of twinkle that has a text."""
    for label, value in VALUES.items():
        if label in right:
            continue
        try:
            call(value)
        except TwinkleError as error:
            assert str(error).strip(), f"{name} with {label}: no text"
        except Exception as error:
            pytest.fail(f"{name} with {label}: {type(error).__name__}: {error}")
        else:
            pytest.fail(f"{name} took {label}")
