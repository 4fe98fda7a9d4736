"""What becomes of a loss's arguments of several ranks: one list, or one value for all."""

import pickle
import re
from collections import deque
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from twinkle.errors import InvalidError
from twinkle.model.together import _Arguments


class Way(Enum):
    SHORT = 1
    LONG = 2


@dataclass
class Options:
    scale: float
    table: torch.Tensor


class Bare:
    """Equal to itself alone."""

    def __init__(self, values):
        self.values = values

    def total(self):
        return sum(self.values)


def endless(value):
    """One that holds itself, and a tensor."""
    out = Bare([torch.full((2,), value)])
    out.values.append(out)
    return out


def options(scale):
    """Whose tensor has more behind it than it shows, as large as the scale."""
    return Options(scale, torch.ones(2 + int(scale))[:2])


def joined(*values):
    """On the first of two ranks of two rows each; values come from other processes."""
    group = SimpleNamespace(loss=lambda: None, are_of_rows={})
    sent = [pickle.loads(pickle.dumps(value)) for value in values]
    return _Arguments([2, 2], 0, group).joined(("given",), sent, None)


OTHERS = {
    "sets": ({"a", "b"}, {"a", "c"}),
    "frozen sets": (frozenset("a"), frozenset("b")),
    "enums": (Way.SHORT, Way.LONG),
    "data classes": (options(1.0), options(2.0)),
    "objects": (Bare([1.0]), Bare([2.0])),
    "queues in objects": (Bare([deque([1])]), Bare([deque([2])])),
    "objects that hold themselves": (endless(1.0), endless(2.0)),
    "patterns": (re.compile("a"), re.compile("b")),
    "methods": (Bare([1.0]).total, Bare([2.0]).total),
    "paths": (Path("/a"), Path("/b")),
    "functions": (options, joined),
    "classes": (Options, Bare),
    "nothing and something": (None, Way.LONG),
    "a text and an enum": ("SHORT", Way.SHORT),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_differs_between_ranks_and_is_of_no_rows_is_refused_whatever_it_is(kind):
    one, other = OTHERS[kind]
    with pytest.raises(InvalidError, match=r"model: given of the loss's arguments is .* on rank 1"):
        joined(one, other)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({"b", "a", 17, 9}, {9, "a", 17, "b"}),
        (Way.LONG, Way.LONG),
        (Options(1.0, torch.ones(2)), Options(1.0, torch.ones(9)[:2])),
        (Bare([1.0, torch.ones(2)]), Bare([1.0, torch.ones(9)[:2]])),
        (torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)),
        (Bare([deque([torch.ones(2)])]), Bare([deque([torch.ones(9)[:2]])])),
        (Bare([torch.ones(2)]).total, Bare([torch.ones(9)[:2]]).total),
        (re.compile("a"), re.compile("a")),
        (Path("/a"), Path("/a")),
        (options, options),
        (None, None),
    ],
)
def test_what_is_the_same_on_all_ranks_is_taken_whatever_it_is(one, same):
    if isinstance(one, torch.nn.Module):
        same.load_state_dict(one.state_dict())
    assert type(joined(one, same)) is type(one)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ([Way.SHORT, Way.LONG], [Way.LONG, Way.LONG]),
        ([{1}, {2}], [{1}, {3}]),
        ([Path("a"), Path("b")], [Path("a"), Path("c")]),
    ],
)
def test_lists_of_anything_with_an_entry_for_each_row_are_joined(first, last):
    assert joined(first, last) == first + last
    with pytest.raises(InvalidError, match="on every rank, which may have"):
        joined(first, first)


def test_tuples_become_one_tuple_and_a_tuple_and_a_list_a_list():
    assert joined((1, 2), (3, 4)) == (1, 2, 3, 4)
    assert joined((1, 2), [3, 4]) == joined([1, 2], [3, 4]) == [1, 2, 3, 4]
    arrays = joined(np.array([1, 2]), np.array([3, 4]))
    assert isinstance(arrays, np.ndarray) and arrays.tolist() == [1, 2, 3, 4]
