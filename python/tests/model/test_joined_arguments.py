"""Arguments of a loss on several ranks: one list, or one value for all."""

import pickle
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from twinkle.errors import InvalidError
from twinkle.model.together import Together


@dataclass
class Options:
    scale: float


def joined(*values, named=(), name="given"):
    """On the first of two ranks of two rows each; values come from other processes."""
    loss = lambda: None  # noqa: E731
    loss.row_arguments = named
    ranks = Together.__new__(Together)
    ranks.is_alone = False
    ranks._ranks, ranks._counts = SimpleNamespace(size=2, rank=0), [2, 2]
    sent = [{name: pickle.loads(pickle.dumps(value))} for value in values]
    return ranks.joined(sent, SimpleNamespace(loss=loss))[name]


DIFFERS = r"(?s)model: given of the loss's arguments is .* on rank 0 and .* on rank 1, it must be"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 2.0),
        (True, "True"),
        (None, 0),
        (2.0, [1.0, 2.0]),
        ([0.5, 2.0], [0.5, 3.0]),
        (np.array([0.5, 2.0]), np.array([0.5, 3.0])),
        (torch.ones(2), np.ones(2)),
        ([torch.ones(2)], [torch.zeros(2)]),
        ("a text", Options(1.0)),
    ],
)
def test_what_differs_between_ranks_and_is_of_no_rows_is_refused(one, other):
    with pytest.raises(InvalidError, match=DIFFERS):
        joined(one, other)


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        float("nan"),
        None,
        [0.5, [2.0, "a"]],
        np.array([0.5, np.nan]),
        torch.nn.Parameter(torch.ones(2)),
        {"a": torch.ones(2, dtype=torch.bfloat16)},
        Options(1.0),
    ],
)
def test_what_is_the_same_on_all_ranks_is_taken(value):
    assert type(joined(value, value)) is type(value)


def test_lists_that_nobody_names_are_refused_by_name_but_for_those_of_twinkles_losses():
    given = [0.5, 2.0]
    with pytest.raises(InvalidError, match=r"set row_arguments on the loss, .* \('given',\) or "):
        joined(given, given, named=None)
    assert joined(given, given, named=None, name="advantages") == given + given
    assert joined(given, given) == given
    with pytest.raises(InvalidError, match=r"advantages of .* has 3 and 3 entries for 2 and 2 ro"):
        joined([1, 2, 3], [1, 2, 3], named=None, name="advantages")


def test_named_lists_of_anything_are_joined():
    named = {"named": ("given",)}
    assert joined([{1}, {2}], [{1}, {3}], **named) == [{1}, {2}, {1}, {3}]
    assert joined((1, 2), (3, 4), **named) == (1, 2, 3, 4)
    assert joined((1, 2), [3, 4], **named) == joined([1, 2], [3, 4], **named) == [1, 2, 3, 4]
    arrays = joined(np.array([1, 2]), np.array([3, 4]), **named)
    assert isinstance(arrays, np.ndarray) and arrays.tolist() == [1, 2, 3, 4]
    inner = [{"logps": torch.ones(2, n), "temperature": 1.0} for n in (2, 3)]
    assert joined(*inner, **named)["logps"].tolist() == [[1, 1, 0]] * 2 + [[1, 1, 1]] * 2
    with pytest.raises(InvalidError, match="have other names on other ranks"):
        joined({"a": 1}, {"b": 1})


def test_a_dict_that_holds_itself_is_refused():
    """Not a RecursionError somewhere in the call."""
    deep = {"x": 1}
    for _ in range(62):
        deep = {"in": deep}
    assert joined(deep, deep) == deep
    itself = {}
    itself["in"] = itself
    with pytest.raises(InvalidError, match="64 dicts in one another"):
        joined(itself, itself)
