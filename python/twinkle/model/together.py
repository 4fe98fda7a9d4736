"""A batch of all data ranks. Losses and metrics in Python see all of it on every rank, so that
their numbers are those of one process, whatever they add up, and in which order."""

import numbers
import pickle

import numpy as np

from twinkle import checks
from twinkle.errors import require
from twinkle.model.batch import Batch
from twinkle.model.python_loss import outputs_of

# Arguments of Twinkle's own losses and metrics with an entry for each sequence, or each pair.
_OF_ROWS = frozenset(
    (
        "advantages", "old_logps", "old_values", "ref_chosen_logps", "ref_logps", "ref_outputs",
        "ref_rejected_logps", "returns", "rewards", "targets", "teacher_logits",
        "teacher_topk_indices", "teacher_topk_logprobs",
    )
)  # fmt: skip
_SCORES = ("logps", "entropies", "logits", "embeddings", "values")


class Together:
    """own: this process's Batch; whole: that of all ranks; rows: where own lies in whole; given: a
    loss's arguments for whole."""

    def __init__(self, ranks, make):
        """make: a function that gives own, a loss's arguments for it, a dict, or None: they come
        later, and the loss. InvalidError: make() has raised on a rank, and as joined."""
        self._ranks, self.rows = ranks, slice(None)

        def mine():
            own, given, loss = make()
            return (own, given, loss), (own.features, given)

        (self.own, self.given, loss), of_ranks = ranks.agree("a batch", mine)
        self.whole = self.own
        if self.is_alone:
            return
        parts, of_loss = zip(*of_ranks, strict=True)
        self._counts = [len(part) for part in parts]
        begin = sum(self._counts[: ranks.rank])
        self.whole = Batch([feature for part in parts for feature in part])
        self.rows = slice(begin, begin + len(self.own))
        if self.given is not None:
            self.given = self.joined(of_loss, loss)

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

    def joined(self, of_ranks, loss):
        """What a loss is called with, of all sequences, from what each rank has given: lists,
        arrays and tensors with an entry for each sequence of a rank's, or each pair of them, follow
        one another, those that its row_arguments name, if it has these; what else there is must be
        the same on all. InvalidError: ranks have given other names or kinds, or other numbers or
        texts that are not of a sequence; what may be either, since all have given the same."""
        if self.is_alone:
            return of_ranks[0]
        what = "the loss's arguments"
        _require_names(what, of_ranks)
        named, rank = loss.row_arguments, self._ranks.rank
        out = {}
        for name in of_ranks[rank]:
            values = [given[name] for given in of_ranks]
            counts = self._counts if named is None or name in named else None
            _require_one_meaning(name, values, counts, named)
            out[name] = _joined(f"{name} of {what}", values, counts, rank)
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


def _is_sized(value):
    sized = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0
    return sized and not isinstance(value, (str, bytes, dict))


def _is_plain(value):
    return value is None or isinstance(value, (str, np.bool_, numbers.Number))


def _require_names(what, values):
    mine = values[0]
    require(
        all(isinstance(v, dict) and set(v) == set(mine) for v in values),
        f"model: {what} have other names on other ranks, they must be the same on all",
    )


def _require_one_meaning(name, values, counts, named):
    """A list that is the same on all ranks, of as many entries as each has rows, may be of no rows:
    such as two weights of a loss."""
    if counts is None or named is not None or name in _OF_ROWS or not _are_of_rows(values, counts):
        return
    first = pickle.dumps(values[0])
    require(
        any(pickle.dumps(value) != first for value in values[1:]),
        f"model: {name} of the loss's arguments is {checks.short(values[0])} on every rank, which "
        "may have an entry for each row of a rank, or none: set row_arguments on the loss, the "
        f"names of those that have one for each row, ({name!r},) or ()",
    )


def _are_of_rows(values, counts):
    """Whether they have an entry for each sequence, or for each pair."""
    return any(
        all(_is_sized(v) and share * len(v) == n for v, n in zip(values, counts, strict=True))
        for share in (1, 2)
    )


def _joined(what, values, counts, rank):
    """Refuses on every rank, or on none: `values` are the same on all. counts: None: they are of no
    sequences."""
    first, mine = values[0], values[rank]
    if any(isinstance(v, dict) for v in values):
        _require_names(what, values)
        return {
            name: _joined(f"{name} of {what}", [v[name] for v in values], counts, rank)
            for name in mine
        }
    if counts is not None and _are_of_rows(values, counts):
        return _concatenated(values)
    if any(_is_plain(v) for v in values):
        for other, value in enumerate(values):
            require(
                _is_plain(first) and _is_plain(value) and value == first,
                f"model: {what} is {checks.short(first)} on rank 0 and {checks.short(value)} on "
                f"rank {other}, it must be the same on all",
            )
    return mine


def _concatenated(values):
    first = values[0]
    if not hasattr(first, "ndim"):
        return [item for value in values for item in value]
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
