"""A batch of all data ranks. Losses and metrics in Python see all of it on every rank, so that
their numbers are those of one process, whatever they add up, and in which order."""

import copyreg
import inspect
import numbers
import pickle
from collections import deque
from collections.abc import Mapping

import numpy as np

from twinkle import checks
from twinkle.errors import InvalidError, require
from twinkle.loss.base import row_arguments
from twinkle.model.batch import Batch
from twinkle.model.python_loss import outputs_of
from twinkle.remote.rows import cut_arguments

# Names of Twinkle's losses that a loss of one's own has of rows, too: they may be equal on all
# ranks by chance, as the advantages of rewards that are all 0.
_NEVER_CONSTANT = frozenset(
    (
        "advantages", "old_logps", "old_values", "ref_chosen_logps", "ref_logps", "ref_outputs",
        "ref_rejected_logps", "returns", "rewards",
    )
)  # fmt: skip
_MOST_DEEP = 64  # dicts in one another
_SCORES = ("logps", "entropies", "logits", "embeddings", "values")


class Together:
    """own: this process's Batch; whole: that of all ranks; rows: where own lies in whole; given: a
    loss's arguments for whole."""

    def __init__(self, ranks, make):
        """make: a function that gives own, a loss's arguments for it, a dict, or None: they come
        later, and the Group that has the loss. InvalidError: make() has raised on a rank, and as
        joined."""
        self._ranks, self.rows = ranks, slice(None)

        def mine():
            own, given, group = make()
            return (own, given, group), (own.features, given)

        (self.own, self.given, group), of_ranks = ranks.agree("a batch", mine)
        self.whole = self.own
        if self.is_alone:
            return
        parts, of_loss = zip(*of_ranks, strict=True)
        self._counts = [len(part) for part in parts]
        begin = sum(self._counts[: ranks.rank])
        self.whole = Batch([feature for part in parts for feature in part])
        self.rows = slice(begin, begin + len(self.own))
        if self.given is not None:
            self.given = self.joined(of_loss, group)

    @property
    def is_alone(self):
        """Whether there is one rank."""
        return self._ranks.size == 1

    def scores(self, result):
        """The engine's result for own, with the outputs of all sequences."""
        if self.is_alone:
            return result
        names = [name for name in _SCORES if name in result]
        parts = self._ranks.gather("its scores", [result[name] for name in names])
        of_all = [[row for rows in lists for row in rows] for lists in zip(*parts, strict=True)]
        return {**result, **dict(zip(names, of_all, strict=True))}

    def joined(self, of_ranks, group):
        """What the group's loss is called with, of all sequences, from what each rank has given:
        lists, arrays and tensors with an entry for each sequence of a rank's, or each pair of them,
        follow one another; what else there is must be the same on all.

        Which have one, the loss's row_arguments say, and, where the call was cut, who has cut it.
        Without these lengths do, and at the first call values, too: what is the same on all ranks,
        and as long as rows are, may be either. What the group's calls have shown counts from then
        on. InvalidError: that; ranks have given other names or kinds, or other numbers, texts or
        entries that are not of a sequence; row_arguments name what does not have as many."""
        if self.is_alone:
            return of_ranks[0]
        arguments = _Arguments(self._counts, self._ranks.rank, group)
        out = arguments.joined((), of_ranks, cut_arguments())
        group.are_of_rows.update(arguments.shown)
        return out

    def chosen(self, rows):
        """Per sequence what own's `rows` have, of all."""
        parts = [rows] if self.is_alone else self._ranks.gather("its predictions", rows)
        return [row for part in parts for row in part]


def model_output(loss, batch, result):
    """A ModelOutput of the engine's result: of what was asked for."""
    return {"loss": loss, "num_tokens": batch.num_labels, **outputs_of(batch, result)}


def asked(task, outputs):
    """The outputs that a user sees: logits only if the user asked for them, not the loss."""
    return {name: v for name, v in outputs.items() if name != "logits" or task.logits}


def own(outputs, together, result):
    """The outputs of all ranks as one of them returns them: loss and num_tokens are of all, rows
    its own."""
    if together.is_alone:
        return dict(outputs)
    names = ("loss", "num_tokens", "aux_loss")
    of_all = {name: outputs[name] for name in names if name in outputs}
    return {**of_all, **outputs_of(together.own, result)}


class _Arguments:
    """A loss's arguments of all ranks, the same on each of them, so that all refuse or none. shown:
    {path: whether it has an entry for each row} of those of which this call has told."""

    def __init__(self, counts, rank, group):
        """counts: rows of each rank."""
        self._counts, self._rank, self._known = counts, rank, group.are_of_rows
        self._named, self.shown = row_arguments(group.loss), {}

    def joined(self, path, values, is_cut):
        """One value of those of the ranks. path: names, from that of an argument to that of an
        entry in it. is_cut: as cut_arguments gives it; None: nobody knows."""
        if any(isinstance(value, Mapping) for value in values):
            _require_names(_what(path), values)
            require(
                len(path) < _MOST_DEEP,
                f"model: {_what(path[:1])} has dicts in one another, {_MOST_DEEP} "
                "deep or more, or one that holds itself",
            )
            return {
                name: self.joined(
                    (*path, name),
                    [value[name] for value in values],
                    is_cut.get(name) if isinstance(is_cut, dict) else is_cut,
                )
                for name in values[0]
            }
        if all(map(_is_sized, values)) and self._is_of_rows(path, values, is_cut):
            return _concatenated(values)
        _require_same(_what(path), values)
        return values[self._rank]

    def _is_of_rows(self, path, values, is_cut):
        if is_cut is True:
            return True
        is_whole = is_cut is False
        if self._named is not None:
            is_named = path[0] in self._named
            if is_named and is_whole:
                _require_fit(path, values[:1], [sum(self._counts)])
            elif is_named:
                _require_fit(path, values, self._counts)
            return is_named and not is_whole
        if is_whole:
            return False
        known = self._known.get(path)
        if known is None:
            known = _fit(values, self._counts)
            if all(map(len, values)):  # an empty one shows nothing
                self.shown[path] = known
            require(
                not known
                or path[0] in _NEVER_CONSTANT
                or not all(_are_same(values[0], value) for value in values),
                f"model: {_what(path)} is {checks.short(values[0])} on every rank, which may have "
                "an entry for each row of a rank, or none: set row_arguments on the loss, the "
                f"names of those that have one for each row, ({path[0]!r},) or ()",
            )
        elif known:
            _require_fit(path, values, self._counts)
        return known


def _what(path):
    return " of ".join([*map(str, reversed(path)), "the loss's arguments"])


def _is_sized(value):
    sized = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0
    return sized and not isinstance(value, (str, bytes, set, frozenset, Mapping))


def _is_plain(value):
    return value is None or isinstance(value, (str, bytes, np.bool_, numbers.Number))


def _require_names(what, values):
    mine = values[0]
    require(
        all(isinstance(v, Mapping) and set(v) == set(mine) for v in values),
        f"model: {what} have other names on other ranks, they must be the same on all",
    )


def _fit(values, counts):
    """Whether they have an entry for each sequence, or for each pair."""
    return any(
        all(share * len(v) == n for v, n in zip(values, counts, strict=True)) for share in (1, 2)
    )


def _require_fit(path, values, counts):
    entries, rows = (" and ".join(map(str, each)) for each in (map(len, values), counts))
    require(
        _fit(values, counts),
        f"model: {_what(path)} has {entries} entries for {rows} rows, but its loss has an entry of "
        "it for each row, or for each pair, by its row_arguments or an earlier call",
    )


def _require_same(what, values):
    first = values[0]
    for other, value in enumerate(values):
        if _are_same(first, value):
            continue
        if _is_sized(first) and _is_sized(value):
            raise InvalidError(
                f"model: {what} differs between rank 0 and rank {other}, and has no entry for each "
                "sequence of a rank's: it must be the same on all, or named by the loss's "
                "row_arguments, with an entry for each sequence"
            )
        raise InvalidError(
            f"model: {what} is {checks.short(first)} on rank 0 and {checks.short(value)} on rank "
            f"{other}, it must be the same on all"
        )


def _are_same(one, other):
    """Whether two values, from different processes, hold the same.

    Values may hold themselves and share parts. Which of their parts are one object does not count:
    one that holds a part twice is the same as one that holds two equal ones."""
    # A pair that is met again is taken for the same: where it is not, its first comparison ends
    # all. Both stay in `met`, or what is made for a comparison would get an earlier one's id.
    todo, met = [(one, other, False)], {}
    while todo:
        one, other, is_part = todo.pop()
        if _is_plain(one) and _is_plain(other):
            if one == other or (one != one and other != other):  # nan
                continue
            return False
        key = id(one), id(other)
        if key in met:
            continue
        met[key] = one, other
        parts = _parts(one, other, is_part)
        if parts is None:
            return False
        todo.extend(parts)
    return True


def _parts(one, other, is_part):
    """(a part of one, the same part of other, whether it is an object's) of two values that are the
    same if all these are; None: they are not. is_part: whether they are of an object."""
    if type(one) is not type(other):
        return None
    if _is_array(one):
        are_alike = one.dtype == other.dtype and one.shape == other.shape
        if are_alike and isinstance(one, np.ndarray) and one.dtype == object:
            return [(one.tolist(), other.tolist(), is_part)]
        same = are_alike and bool(((one == other) | ((one != one) & (other != other))).all())
        return [] if same else None
    if isinstance(one, (list, tuple, deque)):
        pairs = zip(one, other, strict=False)
        return [(*pair, is_part) for pair in pairs] if len(one) == len(other) else None
    if isinstance(one, Mapping):
        same = set(one) == set(other)
        return [(one[key], other[key], is_part) for key in one] if same else None
    if isinstance(one, (set, frozenset)):
        return [] if one == other else None
    return [] if one is other else _parts_of_object(one, other, is_part)


def _is_array(value):
    """Whether it is NumPy's or torch's; others with a dtype, as a DataFrame, are objects."""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    is_torchs = type(value).__module__.partition(".")[0] == "torch"
    return is_torchs and not isinstance(value, type) and hasattr(value, "ndim")


def _parts_of_object(one, other, is_part):
    """As _parts. What is part of an object has been pickled with it: again for each part would take
    as often as it is deep."""
    if inspect.ismethod(one):
        same = one.__func__ is other.__func__
        return [(one.__self__, other.__self__, is_part)] if same else None
    is_named = inspect.isroutine(one) or isinstance(one, type)
    if (is_named or not is_part) and _are_pickled_alike(one, other):
        return []
    return None if is_named else [(_kept(one), _kept(other), True)]


def _are_pickled_alike(one, other):
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except RecursionError:  # they were sent from where there was more room
        return False


def _kept(one):
    """What pickle would keep of an object: two pickles of equal tensors differ."""
    reduced = copyreg.dispatch_table.get(type(one))
    kept = reduced(one) if reduced else one.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
    if not isinstance(kept, tuple):
        return kept
    entries = [part if part is None else list(part) for part in kept[3:5]]  # given as iterators
    return (*kept[:3], *entries, *kept[5:])


def _concatenated(values):
    first = values[0]
    if not hasattr(first, "ndim") or any(type(value) is not type(first) for value in values):
        kind = tuple if all(type(value) is tuple for value in values) else list
        return kind(item for value in values for item in value)
    is_array = isinstance(first, np.ndarray)
    if first.ndim > 1:  # padded to the longest of a rank
        longest = max(value.shape[1] for value in values)
        values = [_wider(value, longest, is_array) for value in values]
    if is_array:
        return np.concatenate(values)
    import torch

    return torch.cat(values)


def _wider(value, longest, is_array):
    more = longest - value.shape[1]
    rest = value.ndim - 2
    if is_array:
        return np.pad(value, [(0, 0), (0, more), *[(0, 0)] * rest])
    import torch

    return torch.nn.functional.pad(value, (*[0, 0] * rest, 0, more))
