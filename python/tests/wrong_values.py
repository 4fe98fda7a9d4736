"""Values of all kinds, and that a call refuses those that are wrong for it."""

import math

import pytest

from twinkle.errors import TwinkleError

NAN, INF = math.nan, math.inf
VALUES = {
    "None": None, "5": 5, "-1": -1, "0": 0, "2**70": 2**70, "1.5": 1.5, "nan": NAN, "inf": INF,
    "True": True, "text": "x", "empty text": "", "list": [], "dict": {}, "list of None": [None],
    "object": object(), "class": int, "bytes": b"x", "list of lists": [[1], [2, 3]],
}  # fmt: skip


def expect_refusals(name, call, world, right):
    """call(world, value) raises a TwinkleError with a text for every value but those named."""
    for label, value in VALUES.items():
        if label in right:
            continue
        try:
            call(world, value)
        except TwinkleError as error:
            assert str(error).strip(), f"{name} with {label}: no text"
        except Exception as error:
            pytest.fail(f"{name} with {label}: {type(error).__name__}: {error}")
        else:
            pytest.fail(f"{name} took {label}")
