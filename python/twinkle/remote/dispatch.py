"""Dispatch: the arguments that each worker of a group gets.

A batch is cut into contiguous pieces in the order of the data ranks, so that the pieces, joined
again, are the batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from twinkle import checks
from twinkle.device_mesh import bounds
from twinkle.remote.lazy import LazyResult, cut, num_rows


@dataclass(frozen=True)
class Share:
    """The arguments of one worker. first_row: the place of its first row in the whole batch; None:
    nobody has cut it. cut: as rows.cut_arguments gives it."""

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
        return how.dispatch(target, args, kwargs)
    if callable(how.dispatch):
        made = [how.dispatch(count, i, args, kwargs, device_mesh=mesh) for i in range(count)]
        return [_share_of(each, target) for each in made]
    if how.dispatch == "all" or how.execute == "first":
        return [Share(args, kwargs)] * count
    deep = how.dispatch == "slice_dp"
    places = data_places(mesh) if deep else [(index, count) for index in range(count)]
    counts = (num_rows(value, deep) for value in (*args, *kwargs.values()))
    rows = next((count for count in counts if count is not None), None)
    return [
        Share(
            tuple(cut(v, *place, deep, f"{target}: argument {i}") for i, v in enumerate(args, 1)),
            {name: cut(v, *place, deep, f"{target}: {name}") for name, v in kwargs.items()},
            None if rows is None else bounds(rows, *place)[0],
        )
        for place in places
    ]


def _share_of(made, target):
    if isinstance(made, Share):
        return made
    if not (isinstance(made, (tuple, list)) and len(made) == 2):
        checks.refuse(f"infra: what a dispatch of {target} returns", made, "a pair (args, kwargs)")
    return Share(*made)


def data_places(mesh):
    """[(piece, pieces)] of the workers: their data ranks; ranks that share one get the same
    piece."""
    pieces, ranks = mesh.data_world_size, range(mesh.world_size)
    return [(mesh.get_data_rank_from_global_rank(rank), pieces) for rank in ranks]


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

    def __call__(self, target, args, kwargs):
        """A Share for each worker. InvalidError: fewer rows than data ranks, and as_rows's."""
        inputs = args[0] if args else kwargs.get("inputs")
        if not isinstance(inputs, LazyResult):
            inputs = self.as_rows(inputs)
        rows, places = num_rows(inputs), data_places(target.device_mesh)
        spans = [(None, None) if rows is None else bounds(rows, *place) for place in places]
        pairs = self.pairs and rows and all(begin % 2 == end % 2 == 0 for begin, end in spans)
        out = []
        for place, span in zip(places, spans, strict=True):
            mine = cut(inputs, *place, what=f"{target}: inputs")
            own = (kwargs, None) if self.alone else _own(kwargs, rows, place, pairs and span)
            rest, is_cut = own
            given = ((mine, *args[1:]), rest) if args else ((), {**rest, "inputs": mine})
            out.append(Share(*given, span[0], is_cut))
        return out


def _own(value, rows, place, pairs):
    """(a place's part of a value, whether that is a piece): where it has an entry for each of
    `rows` rows, or for each pair of them. pairs: where the place's rows begin and end; False: pairs
    are not cut."""
    if isinstance(value, Mapping):
        found = {key: _own(entry, rows, place, pairs) for key, entry in value.items()}
        return tuple({key: each[i] for key, each in found.items()} for i in (0, 1))
    if isinstance(value, LazyResult):
        is_cut = value._is_of_rows(rows)
    else:
        entries = num_rows(value)
        if rows and pairs and entries is not None and 2 * entries == rows:
            return value[pairs[0] // 2 : pairs[1] // 2], True
        is_cut = bool(rows) and entries == rows
    return (cut(value, *place) if is_cut else value), is_cut


def whole(count, index, args, kwargs, device_mesh=None):
    """A dispatch of methods whose named arguments are of the whole batch, which the workers have
    got before: each gets them all."""
    del count, index, device_mesh
    return Share(args, kwargs, cut=dict.fromkeys(kwargs, False))
