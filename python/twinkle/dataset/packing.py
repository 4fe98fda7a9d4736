"""PackingDataset and IterablePackingDataset: rows of several samples, of nearly equal length."""

import itertools

from twinkle import checks
from twinkle.core import core
from twinkle.dataset.dataset import Dataset
from twinkle.dataset.noted import IterableDataset
from twinkle.errors import require
from twinkle.remote.how import at_once

_LENGTH = 2048  # tokens of a row where the template has no max_length
_CHUNK = 1000  # rows that are packed together


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
        it would be alone. InvalidError: a row that is not encoded, or longer than that, or that has
        routed_experts.
        """
        self._set_rows(self._rows.packed(_limit(self.template), _CHUNK))


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

    @at_once
    def pack_dataset(self):
        """Calls encode where that was not called yet; rows come packed in any case."""
        if not self.do_encode:
            self.encode()

    def __iter__(self):
        rows = self._again() if self._cyclic else super().__iter__()
        for number in itertools.count():
            samples = core().Dataset.of(
                itertools.islice(rows, self._interval), f"interval {number}"
            )
            if not len(samples):
                return
            packed = samples.packed(_limit(self.template), self._interval)
            yield from packed.rows(0, len(packed))

    def _again(self):
        while True:
            count = 0
            for count, row in enumerate(super().__iter__(), 1):  # noqa: B007
                yield row
            require(count, "dataset: there are no rows to begin again with")


def _limit(template):
    return getattr(template, "max_length", None) or _LENGTH
