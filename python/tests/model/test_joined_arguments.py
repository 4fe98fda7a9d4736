"""Arguments of a loss on several ranks: one list, or one value for all."""

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
from twinkle.model.together import _are_same, _Arguments


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


class Tree(torch.nn.Module):
    """Its child knows its parent."""

    def __init__(self, value, depth=3):
        super().__init__()
        self.head = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(self.head.weight, value)
        torch.nn.init.constant_(self.head.bias, 0.0)
        self.child = Tree(value, depth - 1) if depth else None
        if depth:
            object.__setattr__(self.child, "parent", self)


def changed_deep_inside(tree):
    torch.nn.init.constant_(tree.child.child.child.head.bias, 1e-6)
    return tree


class Counted:
    """Counts how often pickle, or who does as it does, has asked for what it keeps."""

    num_asked = 0

    def __init__(self, *parts):
        self.parts = parts

    def __reduce_ex__(self, protocol):
        Counted.num_asked += 1
        return super().__reduce_ex__(protocol)


def shared(levels, value=1.0):
    """A list of so many levels, each of which holds the next one twice."""
    out = Counted(torch.full((2,), value))
    for _ in range(levels):
        out = Counted(out, out)
    return out


def chain(length, value=1.0):
    out = Bare([torch.full((2,), value)])
    for _ in range(length):
        out = Bare([out])
    return out


def objects(value):
    """More than rows are, and no number of pairs."""
    return np.array([Bare([value]) for _ in range(3)], dtype=object)


class Filled:
    """To which pickle adds its entries, from an iterator that can't be pickled itself."""

    def __init__(self, entries=()):
        self.entries = list(entries)

    def extend(self, entries):
        self.entries.extend(entries)

    def __reduce_ex__(self, protocol):
        return Filled, (), None, (entry for entry in self.entries)


class Table:
    """As a DataFrame: it has a dtype, and is no array."""

    ndim, dtype = 2, np.dtype("float32")

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


def options(scale):
    """Its tensor has more memory behind it than it shows, as large as the scale."""
    return Options(scale, torch.ones(2 + int(scale))[:2])


def joined(*values):
    """On the first of two ranks of two rows each; values come from other processes."""
    group = SimpleNamespace(loss=lambda: None, are_of_rows={})
    sent = [pickle.loads(pickle.dumps(value)) for value in values]
    out = _Arguments([2, 2], 0, group).joined((), [{"given": value} for value in sent], None)
    return out["given"]


OTHERS = {
    "sets": ({"a", "b"}, {"a", "c"}),
    "frozen sets": (frozenset("a"), frozenset("b")),
    "enums": (Way.SHORT, Way.LONG),
    "data classes": (options(1.0), options(2.0)),
    "objects": (Bare([1.0]), Bare([2.0])),
    "queues in objects": (Bare([deque([1])]), Bare([deque([2])])),
    "objects that hold themselves": (endless(1.0), endless(2.0)),
    "a value deep inside of modules": (Tree(1.0), changed_deep_inside(Tree(1.0))),
    "a value below what is shared": (shared(40), shared(40, 1.5)),
    "a value far down": (chain(150), chain(150, 1.5)),
    "entries of iterators": (Filled([torch.ones(2)]), Filled([torch.zeros(2)])),
    "arrays of objects": (objects(torch.ones(2)), objects(torch.zeros(2))),
    "patterns": (re.compile("a"), re.compile("b")),
    "methods": (Bare([1.0]).total, Bare([2.0]).total),
    "paths": (Path("/a"), Path("/b")),
    "functions": (options, joined),
    "classes": (Options, Bare),
    "classes of numbers": (np.float32, np.float64),
    "tables": (Bare([Table(1.0), torch.ones(2)]), Bare([Table(2.0), torch.ones(2)])),
    "nothing and something": (None, Way.LONG),
    "a text and an enum": ("SHORT", Way.SHORT),
}


DIFFERS = r"(?s)model: given of the loss's arguments (is .* on|differs .* and) rank 1"


@pytest.mark.parametrize("kind", OTHERS)
def test_what_differs_between_ranks_and_is_of_no_rows_is_refused_whatever_it_is(kind):
    one, other = OTHERS[kind]
    with pytest.raises(InvalidError, match=DIFFERS):
        joined(one, other)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ({"b", "a", 17, 9}, {9, "a", 17, "b"}),
        (Way.LONG, Way.LONG),
        (Options(1.0, torch.ones(2)), Options(1.0, torch.ones(9)[:2])),
        (Bare([1.0, torch.ones(2)]), Bare([1.0, torch.ones(9)[:2]])),
        (torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)),
        (endless(1.0), endless(1.0)),
        (Tree(1.0), Tree(1.0)),
        (chain(150), chain(150)),
        (Filled([torch.ones(2)]), Filled([torch.ones(9)[:2]])),
        (objects(torch.ones(2)), objects(torch.ones(9)[:2])),
        (Bare([deque([torch.ones(2)])]), Bare([deque([torch.ones(9)[:2]])])),
        (Bare([torch.ones(2)]).total, Bare([torch.ones(9)[:2]]).total),
        (re.compile("a"), re.compile("a")),
        (Path("/a"), Path("/a")),
        (options, options),
        (Bare([torch.ones(2), np.float32, torch.Tensor]),) * 2,
        (Bare([Table(1.0), torch.ones(2)]), Bare([Table(1.0), torch.ones(9)[:2]])),
        (None, None),
    ],
)
def test_what_is_the_same_on_all_ranks_is_taken_whatever_it_is(one, same):
    if isinstance(one, torch.nn.Module):
        same.load_state_dict(one.state_dict())
    assert type(joined(one, same)) is type(one)


def test_one_object_that_was_sent_twice_is_the_same():
    for value in (endless(1.0), Tree(1.0), shared(40)):
        assert type(joined(value, value)) is type(value)


def test_parts_that_are_shared_are_compared_once():
    levels = 40  # they hold 2**40 parts if each is counted wherever it is
    one, other = (pickle.loads(pickle.dumps(shared(levels))) for _ in range(2))
    Counted.num_asked = 0
    assert _are_same(one, other)
    # Both: once by pickle, and once in the comparison.
    assert Counted.num_asked <= 4 * (levels + 1)


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_what_is_made_for_a_comparison_is_never_taken_for_what_was_there_before(depth):
    """The tuples of __reduce_ex__ live as long as ids are compared by them."""
    ones, others = ([Bare([torch.full((1,), float(i)), []]) for i in range(200)] for _ in range(2))
    assert _are_same(ones, others)
    others[depth].values[0] += 1
    assert not _are_same(ones, others)


def test_a_part_that_is_held_twice_is_the_same_as_two_equal_ones():
    part = Bare([torch.ones(2)])
    twice, two = Bare([part, part]), Bare([part, Bare([torch.ones(2)])])
    assert type(joined(twice, two)) is type(joined(two, twice)) is Bare
    with pytest.raises(InvalidError, match=DIFFERS):
        joined(twice, Bare([part, Bare([torch.zeros(2)])]))


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


def test_a_dict_that_holds_itself_is_refused():
    """Not a RecursionError somewhere in the call."""
    deep = {"x": 1}
    for _ in range(62):
        deep = {"in": deep}
    assert joined(deep, deep) == deep
    itself = {}
    itself["in"] = itself
    for value in ({"in": deep}, itself):
        with pytest.raises(
            InvalidError, match="given of the loss's arguments has dicts in one another"
        ):
            joined(value, value)
