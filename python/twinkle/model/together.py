"""A batch of all data ranks. Losses and metrics in Python see all of it on every rank, so that
their numbers are those of one process, whatever they add up, and in which order."""

import numbers
from collections.abc import Mapping

import numpy as np

from twinkle import checks
from twinkle.engine.batch import Batch
from twinkle.errors import require
from twinkle.loss.base import row_arguments
from twinkle.model.python_loss import outputs_of
from twinkle.remote.rows import cut_arguments

# Arguments of Twinkle's losses with an entry for each row, which a loss of one's own need not name.
_OF_ROWS = (
    "advantages", "old_logps", "old_values", "ref_chosen_logps", "ref_logps", "ref_outputs",
    "ref_rejected_logps", "returns", "rewards",
)  # fmt: skip
_PLAIN = (str, bytes, bool, numbers.Number, type(None))
_OF_ARRAYS = ("numpy", "torch")
_MOST_DEEP = 64  # dicts in one another
_SCORES = ("logps", "entropies", "logits", "embeddings", "values", "label_logits")


class Together:
    """own: this process's Batch; whole: that of all ranks; rows: where own lies in whole; given: a
    loss's arguments for whole; group: the Group that has the loss; task: what is asked for."""

    # A forward sets its outputs of all sequences, and disable_lora where the base model scored
    # them; calculate_loss sets the loss that it took, and this one's arguments.
    outputs = loss = loss_kwargs = None
    disable_lora = False

    def __init__(self, ranks, make):
        """make: a function that gives group, task, own, and a loss's arguments for it, a dict, or
        None: they come later. InvalidError: make() has raised on a rank, and as joined."""
        self._ranks, self.rows = ranks, slice(None)

        def mine():
            group, task, own, given = make()
            return (group, task, own, given), (own.features, given)

        own, of_ranks = ranks.agree("a batch", mine)
        self.group, self.task, self.own, self.given = own
        self.whole = self.own
        if self.is_alone:
            return
        parts, of_loss = zip(*of_ranks, strict=True)
        self._counts = [len(part) for part in parts]
        begin = sum(self._counts[: ranks.rank])
        self.whole = Batch([feature for part in parts for feature in part])
        self.rows = slice(begin, begin + len(self.own))
        if self.given is not None:
            self.given = self.joined(of_loss, self.group)

    @property
    def is_alone(self):
        """True: there is one rank."""
        return self._ranks.size == 1

    def scores(self, result):
        """The engine's result for own, with the outputs of all sequences."""
        names = [name for name in _SCORES if name in result]
        parts = self._ranks.gather("its scores", [result[name] for name in names])
        of_all = [[row for rows in lists for row in rows] for lists in zip(*parts, strict=True)]
        return {**result, **dict(zip(names, of_all, strict=True))}

    def joined(self, of_ranks, group):
        """The arguments of the group's loss for all sequences, from those that each rank has given.

        Arguments with an entry for each sequence of a rank's, or each pair of them, follow one
        another: those that the loss's row_arguments name, without it those of _OF_ROWS, and, where
        the call was cut, what was cut of it. All others are numbers, texts or arrays that are the
        same on all ranks, or objects of which each rank has its own. InvalidError: they are not;
        one with a length that nobody names; ranks have given other names; row_arguments name what
        has another length."""
        if self.is_alone:
            return of_ranks[0]
        named = row_arguments(group.loss)
        return self._joined((), of_ranks, named, cut_arguments())

    def _joined(self, path, values, named, is_cut):
        """One value of those of the ranks. path: names, from that of an argument to that of an
        entry in it. is_cut: as cut_arguments gives it; None: nobody knows."""
        what = " of ".join([*map(str, reversed(path)), "the loss's arguments"])
        if any(isinstance(value, Mapping) for value in values):
            require(
                all(isinstance(v, Mapping) and set(v) == set(values[0]) for v in values),
                f"model: {what} have other names on other ranks, they must be the same on all",
            )
            require(len(path) < _MOST_DEEP, f"model: {what}: {_MOST_DEEP} dicts in one another")
            return {
                name: self._joined(
                    (*path, name),
                    [value[name] for value in values],
                    named,
                    is_cut.get(name) if isinstance(is_cut, dict) else is_cut,
                )
                for name in values[0]
            }
        if all(map(_is_sized, values)):
            is_named = path[0] in (_OF_ROWS if named is None else named)
            if is_named:
                self._require_fit(what, values, is_cut is False)
            if is_cut or (is_named and is_cut is None):
                return _concatenated(values)
            require(
                named is not None or is_cut is not None,
                f"model: {what} is {checks.short(values[0])}, which may have an entry for each row "
                "of a rank, or none: set row_arguments on the loss, the names of those that have "
                f"one for each row, ({path[0]!r},) or ()",
            )
        for rank, value in enumerate(values):
            require(
                not _differ(values[0], value),
                f"model: {what} is {checks.short(values[0])} on rank 0 and {checks.short(value)} "
                f"on rank {rank}, it must be the same on all",
            )
        return values[self._ranks.rank]

    def _require_fit(self, what, values, is_whole):
        counts = [sum(self._counts)] if is_whole else self._counts
        lengths = [len(value) for value in values[: len(counts)]]
        entries, rows = (" and ".join(map(str, each)) for each in (lengths, counts))
        require(
            any([share * n for n in lengths] == counts for share in (1, 2)),
            f"model: {what} has {entries} entries for {rows} rows, but its loss has an entry of it "
            "for each row, or for each pair, by its row_arguments",
        )

    def chosen(self, rows):
        """Per sequence what own's `rows` have, of all."""
        return [row for part in self._ranks.gather("its predictions", rows) for row in part]

    def model_output(self, scores, loss=None):
        """A ModelOutput of the engine's scores of all sequences: of what was asked for."""
        of_rows = outputs_of(self.whole, scores)
        return {"loss": loss, "num_tokens": self.whole.num_labels, **of_rows}

    def own_outputs(self, outputs, result):
        """The outputs of all ranks as one of them returns them: loss and num_tokens are of all,
        rows its own."""
        if self.is_alone:
            return dict(outputs)
        names = ("loss", "num_tokens", "aux_loss")
        of_all = {name: outputs[name] for name in names if name in outputs}
        return {**of_all, **outputs_of(self.own, result)}


def _is_sized(value):
    sized = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0
    return sized and not isinstance(value, (str, bytes, set, frozenset, Mapping))


def _differ(one, other):
    """True: two numbers, texts, arrays or lists of them differ; other objects do not."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) != len(other) or any(map(_differ, one, other))
    if isinstance(one, _PLAIN) or isinstance(other, _PLAIN):
        both = isinstance(one, _PLAIN) and isinstance(other, _PLAIN)
        return not (both and (one == other or (one != one and other != other)))  # nan
    if _is_array(one) or _is_array(other):
        if type(one) is not type(other) or one.shape != other.shape:
            return True
        return not bool(((one == other) | ((one != one) & (other != other))).all())
    return type(one) is not type(other)


def _is_array(value):
    """True: it is NumPy's or torch's; others with a dtype, as a DataFrame, are objects."""
    return hasattr(value, "ndim") and type(value).__module__.partition(".")[0] in _OF_ARRAYS


def _concatenated(values):
    import torch

    first = values[0]
    if not hasattr(first, "ndim") or any(type(value) is not type(first) for value in values):
        kind = tuple if all(type(value) is tuple for value in values) else list
        return kind(item for value in values for item in value)
    is_array = isinstance(first, np.ndarray)
    if first.ndim > 1:  # padded to the longest of a rank
        longest, rest = max(value.shape[1] for value in values), first.ndim - 2

        def wider(value):
            more = longest - value.shape[1]
            if is_array:
                return np.pad(value, [(0, 0), (0, more), *[(0, 0)] * rest])
            return torch.nn.functional.pad(value, (*[0, 0] * rest, 0, more))

        values = list(map(wider, values))
    return np.concatenate(values) if is_array else torch.cat(values)
