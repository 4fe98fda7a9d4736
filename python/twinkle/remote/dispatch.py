"""Dispatch: which arguments each worker of a group gets.

A batch is cut into contiguous pieces in the order of the data ranks, so that the pieces, joined
again, are the batch.
"""

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from twinkle import checks
from twinkle.errors import require
from twinkle.remote.lazy import LazyResult


@dataclass(frozen=True)
class Share:
    """What one worker gets. first_row: which row of the whole batch is the first of its own; None:
    nobody has cut it. cut: as cut_arguments gives it."""

    args: tuple
    kwargs: dict
    first_row: int | None = None
    cut: dict | None = None


def shares(how, target, args, kwargs):
    """A Share for each worker of target.group, in the order of ranks.

    target: the proxy that is called: its group, mesh and name in errors. Where the first worker is
    called alone, it gets what is given. InvalidError: a list with fewer entries than there are
    workers (data ranks with 'slice_dp'), a callable that returns no pair, and what it raises.
    """
    count, mesh = target.group.size, target.device_mesh
    if isinstance(how.dispatch, Rows):
        return how.dispatch.shares(target, args, kwargs)
    if callable(how.dispatch):
        out = []
        for index in range(count):
            made = how.dispatch(count, index, args, kwargs, device_mesh=mesh)
            out.append(made if isinstance(made, Share) else _share_of(made, target))
        return out
    if how.dispatch == "all" or how.execute == "first":
        return [Share(args, kwargs)] * count
    places = _places(how.dispatch, count, mesh)
    cutter = _Cutter(places, target, deep=how.dispatch == "slice_dp")
    args = [cutter.cut(f"argument {i + 1}", value) for i, value in enumerate(args)]
    kwargs = {name: cutter.cut(name, value) for name, value in kwargs.items()}
    return [
        Share(
            tuple(each[index] for each in args),
            {name: each[index] for name, each in kwargs.items()},
            cutter.first_rows[index],
        )
        for index in range(count)
    ]


def _share_of(made, target):
    if not (isinstance(made, (tuple, list)) and len(made) == 2):
        checks.refuse(f"infra: what a dispatch of {target} returns", made, "a pair (args, kwargs)")
    return Share(*made)


def data_places(count, mesh):
    """[(piece, pieces)] of the `count` workers: their data ranks; ranks that share one get the same
    piece."""
    if mesh is None:
        return [(index, count) for index in range(count)]
    return [
        (mesh.get_data_rank_from_global_rank(index), mesh.data_world_size) for index in range(count)
    ]


def _places(dispatch, count, mesh):
    return data_places(count, mesh if dispatch == "slice_dp" else None)


def bounds(length, piece, pieces):
    """Where a piece of `length` rows begins and ends: the first ones have one more."""
    each, more = divmod(length, pieces)
    start = piece * each + min(piece, more)
    return start, start + each + (piece < more)


def num_rows(value, deep=True):
    """Rows of what is cut: a list, a tuple, an array or a tensor with a first dimension, and, of a
    dict, its first entry that has some; None: it goes to every worker whole, or, if it is a
    LazyResult, the workers know."""
    if isinstance(value, LazyResult):
        return value.num_rows()
    if isinstance(value, (list, tuple)):
        return len(value)
    if isinstance(value, Mapping):
        found = (num_rows(entry) for entry in value.values()) if deep else ()
        return next((rows for rows in found if rows is not None), None)
    shape = getattr(value, "shape", None) if deep else None
    return int(shape[0]) if shape is not None and len(shape) > 0 else None


def cut(value, piece, pieces, deep=True):
    """One piece of a value; of a dict, of each of its entries. deep: as of num_rows."""
    if isinstance(value, LazyResult):
        return value.piece(piece, pieces, deep)
    if isinstance(value, Mapping) and deep:
        made = copy.copy(value) if isinstance(value, MutableMapping) else dict(value)
        for name, entry in value.items():
            made[name] = cut(entry, piece, pieces)
        return made
    rows = num_rows(value, deep)
    return value if rows is None else value[slice(*bounds(rows, piece, pieces))]


class _Cutter:
    def __init__(self, places, target, deep):
        self._places, self._target, self._deep = places, target, deep
        self.first_rows = [None] * len(places)
        self._told = False

    def cut(self, name, value):
        """The value's pieces, one for each worker."""
        rows = num_rows(value, self._deep)
        if rows is None and not isinstance(value, LazyResult):
            return [value] * len(self._places)
        self._check_pieces(name, value, rows, self._places[0][1])
        if rows is not None and not self._told:  # of the first that is cut
            self._told = True
            self.first_rows = [bounds(rows, *place)[0] for place in self._places]
        return [cut(value, *place, self._deep) for place in self._places]

    def _check_pieces(self, name, value, rows, pieces):
        """InvalidError: a rank would get nothing of it, or of an entry where it is a dict."""
        if isinstance(value, Mapping) and self._deep:
            for key, entry in value.items():
                self._check_pieces(f"{name}[{key!r}]", entry, num_rows(entry), pieces)
        require(
            rows is None or rows >= pieces,
            f"infra: {self._target}: {name} has {rows} entries for {pieces} ranks, each must get "
            "one at least",
        )


@dataclass(frozen=True)
class Rows:
    """A dispatch of methods that take a batch as `inputs`, first or by name: each worker gets the
    piece of its data rank, and of the named arguments that have as many entries as there are rows.
    as_rows: the list of rows in what is given. pairs: likewise of those with half as many, unless a
    pair of rows lies across data ranks. alone: inputs alone are cut: the named arguments are the
    same for all rows."""

    as_rows: Callable
    pairs: bool = False
    alone: bool = False

    def shares(self, target, args, kwargs):
        """A Share for each worker. InvalidError: fewer rows than data ranks, and as_rows's."""
        first = bool(args)
        inputs = args[0] if first else kwargs.get("inputs")
        if not isinstance(inputs, LazyResult):
            inputs = self.as_rows(inputs)
        rows = num_rows(inputs)
        places = data_places(target.group.size, target.device_mesh)
        pieces = places[0][1]
        require(
            rows is None or rows >= pieces,
            f"infra: {target}: inputs has {rows} rows for {pieces} data ranks, each must get one "
            "at least",
        )
        named, is_cut = [kwargs] * len(places), None
        if not self.alone:
            named, is_cut = self._pieces(kwargs, rows, places)
        out = []
        for place, rest in zip(places, named, strict=True):
            mine = cut(inputs, *place)
            begin = None if rows is None else bounds(rows, *place)[0]
            if first:
                out.append(Share((mine, *args[1:]), rest, begin, is_cut))
            else:
                out.append(Share((), {**rest, "inputs": mine}, begin, is_cut))
        return out

    def _pieces(self, value, rows, places):
        """What each place gets of a value, and whether that is a piece: where it has an entry for
        each of `rows` rows, or for each pair of them, none of which two places share."""
        if isinstance(value, Mapping):
            found = {key: self._pieces(entry, rows, places) for key, entry in value.items()}
            each = [
                {key: pieces[i] for key, (pieces, _) in found.items()} for i in range(len(places))
            ]
            return each, {key: is_cut for key, (_, is_cut) in found.items()}
        if isinstance(value, LazyResult):
            is_cut = value.is_of_rows(rows)
            return [value.piece(*place) if is_cut else value for place in places], is_cut
        entries = num_rows(value)
        if rows and entries == rows:
            return [cut(value, *place) for place in places], True
        if rows and self.pairs and entries is not None and 2 * entries == rows:
            ends = [bounds(rows, *place) for place in places]
            if all(begin % 2 == end % 2 == 0 for begin, end in ends):
                return [value[begin // 2 : end // 2] for begin, end in ends], True
        return [value] * len(places), False


def whole(count, index, args, kwargs, device_mesh=None):
    """A dispatch of methods whose named arguments are of the whole batch, which the workers have
    got before: each gets them all."""
    del count, index, device_mesh
    return Share(args, kwargs, cut=dict.fromkeys(kwargs, False))
