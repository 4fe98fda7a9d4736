"""PackingDataset and IterablePackingDataset: rows of several samples, of nearly equal length."""

import itertools

from twinkle import checks
from twinkle.dataset.dataset import Dataset
from twinkle.dataset.iterable import IterableDataset
from twinkle.errors import InvalidError, require
from twinkle.remote.how import at_once

_LENGTH = 2048  # tokens of a row where the template has no max_length
_CHUNK = 1000  # rows that are packed together
_FIELDS = ("input_ids", "labels", "attention_mask", "position_ids", "loss_scale", "completion_mask")


class PackingDataset(Dataset):
    """As Dataset; after encode, pack_dataset() makes rows of several samples. The engine packs what
    it gets by itself: packed rows are for batches of nearly equal numbers of tokens.

    packing_num_proc is accepted: packing is quick. InvalidError: it is no integer of at least 1,
    and as Dataset.
    """

    def __init__(self, dataset_meta=None, packing_num_proc=1, **kwargs):
        checks.integer("dataset: packing_num_proc", packing_num_proc, least=1)
        super().__init__(dataset_meta, **kwargs)

    @at_once
    def pack_dataset(self):
        """Puts encoded samples together, up to the template's max_length (2048 where it has none).

        A packed row has the samples' input_ids, labels, attention_mask and position_ids behind each
        other, positions from 0 for each, and length, their tokens. The loss of every sample is what
        it would be alone. InvalidError: a row that is not encoded, or longer than that.
        """
        rows, limit = self._rows, _limit(self.template)
        lengths = [_length(rows.row(i), limit, rows.where(i)) for i in range(len(rows))]
        packed, origins = [], []
        for begin in range(0, len(lengths), _CHUNK):
            for bin_ in bins(lengths[begin : begin + _CHUNK], limit):
                packed.append(joined([rows.row(begin + i) for i in bin_]))
                origins.append(begin + bin_[0])
        self._set_rows(rows.replaced(packed, origins))


class IterablePackingDataset(IterableDataset):
    """As IterableDataset, whose encoded rows come packed, as PackingDataset packs them.

    packing_interval: samples that are packed together. cyclic: begins again at the end, for ever.
    InvalidError: packing_interval or packing_num_proc is no integer of at least 1, cyclic neither
    True nor False, and as IterableDataset; when rows are read: one that is not encoded, that has no
    tokens or too many, or, with cyclic, none at all.
    """

    def __init__(
        self, dataset_meta=None, packing_interval=128, packing_num_proc=1, cyclic=False, **kwargs
    ):
        checks.integer("dataset: packing_num_proc", packing_num_proc, least=1)
        self._interval = checks.integer("dataset: packing_interval", packing_interval, least=1)
        self._cyclic = checks.flag("dataset: cyclic", cyclic)
        super().__init__(dataset_meta, **kwargs)

    def __iter__(self):
        limit = _limit(self.template)
        rows = self._again() if self._cyclic else super().__iter__()
        return self._packed(rows, limit)

    def _again(self):
        while True:
            count = 0
            for count, row in enumerate(super().__iter__(), 1):  # noqa: B007
                yield row
            require(count, "dataset: there are no rows to begin again with")

    def _packed(self, rows, limit):
        while samples := list(itertools.islice(rows, self._interval)):
            lengths = [_length(row, limit, "a row") for row in samples]
            for bin_ in bins(lengths, limit):
                yield joined([samples[i] for i in bin_])


def bins(lengths, limit):
    """Lists of indices whose lengths together are at most `limit`: each sample, the longest first,
    goes where the least room is left (best fit, decreasing); the lists by their first sample."""
    found, room = [], []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fits = [b for b in range(len(found)) if room[b] >= lengths[i]]
        if fits:
            best = min(fits, key=room.__getitem__)
        else:
            best = len(found)
            found.append([])
            room.append(limit)
        found[best].append(i)
        room[best] -= lengths[i]
    return sorted(map(sorted, found))


def joined(samples):
    """One row of encoded samples. InvalidError: one has routed_experts, whose entries may be one
    fewer than its tokens: rows of their own are replayed."""
    require(
        not any(sample.get("routed_experts") is not None for sample in samples),
        "dataset: a row has routed_experts, which packed rows do not carry; train on such rows "
        "without packing: the engine packs what it gets by itself",
    )
    names = [name for name in _FIELDS if all(name in sample for sample in samples)]
    out = {name: [x for sample in samples for x in sample[name]] for name in names}
    out["position_ids"] = [p for sample in samples for p in range(len(sample["input_ids"]))]
    return {**out, "length": len(out["input_ids"])}


def _limit(template):
    return getattr(template, "max_length", None) or _LENGTH


def _length(row, limit, where):
    if "input_ids" not in row:
        raise InvalidError(f"dataset: {where} has no input_ids: packing comes after encode")
    length = len(row["input_ids"])
    require(
        0 < length <= limit,
        f"dataset: {where} has {length} tokens, packed rows have from 1 to {limit}",
    )
    return length
