"""LazyResult: a result that stays with the workers until somebody looks at it; and how values are
cut into rows."""

import copy
import operator
from collections.abc import Mapping, MutableMapping

from twinkle.device_mesh import bounds
from twinkle.errors import require
from twinkle.remote.collect import join
from twinkle.remote.messages import Handle


class LazyResult(Handle):
    """A remote call's result, there already or not yet. Called, it is the value; it has the value's
    len, items and attributes, too, and is true where the value is. The value is fetched once.

    Passed to another remote call it goes from worker to worker. Every access raises what the call
    raised; InvalidError: of a run that has ended."""

    def __init__(self, pending, ranks, collect, timeout=None):
        self._pending, self._ranks = pending, ranks
        self._collect, self._timeout = collect, timeout
        self._value, self._has_value = None, False

    def __call__(self):
        """The value."""
        kept = self._pending.kept  # before the look: a thread that has the value drops these
        if not self._has_value:
            self._ended()
            parts = self._pending.values([kept[rank] for rank in self._ranks], self._ranks)
            self._value, self._has_value = join(self._collect, parts), True
            self._pending.kept = {}
        return self._value

    def _ended(self):
        """{rank: Outcome}, once the call has ended."""
        self._pending.group.check_run(f"the result of {self._pending.what}")
        return self._pending.result(self._timeout)

    def __len__(self):
        rows = self._num_rows()
        return len(self()) if rows is None else rows

    def __eq__(self, other):
        return self() == (other() if isinstance(other, LazyResult) else other)

    __hash__ = object.__hash__

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self(), name)

    # ---- as an argument

    def _num_rows(self):
        """The whole's rows, where it is one list, or lists put one after the other; None where not.
        Waits until the call has ended."""
        lengths = self._lengths()
        return None if lengths is None else sum(lengths)

    def _lengths(self):
        if self._has_value:
            return [len(self._value)] if isinstance(self._value, list) else None
        if self._collect not in ("flatten", "first", "last_pp_first"):
            return None
        ended = self._ended()
        lengths = [ended[rank].length for rank in self._ranks]
        return None if None in lengths else lengths

    def _is_of_rows(self, rows):
        """True: it has an entry for each of `rows` rows, or is a model's outputs of a batch."""
        return getattr(self._collect, "of_rows", False) or self._num_rows() == rows

    def _ticket(self, group, refs, place=None):
        """place: (piece, pieces, deep) of a worker that gets a piece alone; None: it gets all."""
        self._pending.group.check_run(f"the result of {self._pending.what}")
        kept = self._pending.kept
        if self._has_value:
            return "given", self._value if place is None else cut(self._value, *place)
        self._pending.check_answers()
        ranks, collect = self._ranks, self._collect
        if place is not None and place[1] == len(ranks) and self._parts_are_pieces(place[2]):
            ranks, collect, place = [ranks[place[0]]], "first", None
        begin = len(refs)
        refs += [(self._pending.refs[rank], kept[rank]) for rank in ranks]
        return "joined", (begin, len(refs)), collect, place, self._pending.group.name

    def _parts_are_pieces(self, deep):
        """True: each worker's part is the piece of the whole that would be cut."""
        lengths = self._lengths()
        if lengths is None:
            return deep and getattr(self._collect, "of_rows", False)
        return lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1


_OPERATORS = {
    "__bool__": bool, "__contains__": operator.contains, "__float__": float,
    "__getitem__": operator.getitem, "__iter__": iter, "__repr__": repr,
}  # fmt: skip
for _name, _operator in _OPERATORS.items():
    setattr(LazyResult, _name, lambda lazy, *rest, _of=_operator: _of(lazy(), *rest))


class _Piece(Handle):
    def __init__(self, lazy, place):
        self._lazy, self._place = lazy, place

    def _ticket(self, group, refs):
        return self._lazy._ticket(group, refs, self._place)


# ---- rows


def num_rows(value, deep=True):
    """Rows of what is cut: a list, a tuple, an array or a tensor with a first dimension, and, of a
    dict, its first entry that has some; None: it goes to every worker whole, or, if it is a
    LazyResult, the workers know. deep: False: lists and tuples alone are cut."""
    if isinstance(value, LazyResult):
        return value._num_rows()
    if isinstance(value, (list, tuple)):
        return len(value)
    if isinstance(value, Mapping):
        found = (num_rows(entry) for entry in value.values()) if deep else ()
        return next((rows for rows in found if rows is not None), None)
    shape = getattr(value, "shape", None) if deep else None
    return int(shape[0]) if shape is not None and len(shape) > 0 else None


def cut(value, piece, pieces, deep=True, what="a result that is passed on"):
    """One piece of a value; of a dict, of each of its entries. deep: as of num_rows; what: names it
    in errors. InvalidError: there would be none in a piece."""
    if isinstance(value, Mapping) and deep:
        made = copy.copy(value) if isinstance(value, MutableMapping) else dict(value)
        for name, entry in value.items():
            made[name] = cut(entry, piece, pieces, what=f"{what}[{name!r}]")
        return made
    rows = num_rows(value, deep)
    require(
        rows is None or rows >= pieces,
        f"infra: {what} has {rows} entries for {pieces} ranks, each must get one at least",
    )
    if isinstance(value, LazyResult):
        return _Piece(value, (piece, pieces, deep))
    return value if rows is None else value[slice(*bounds(rows, piece, pieces))]
