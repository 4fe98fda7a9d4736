"""StreamLoader: batches of rows that have no index, for DataLoader."""

import itertools

from twinkle.core import core
from twinkle.errors import NoLengthError, require

EMPTY = "the dataset has no rows: its source is empty, or a filter, check or encode dropped all"


class StreamLoader:
    """Every rank reads every row, and next() gives its slice of each batch of batch_size rows.
    InvalidError: sizes that the core's loader refuses, in its words."""

    def __init__(self, dataset, batch_size, min_batch_size, data_rank_and_world):
        sizes = {"batch_size": batch_size, "min_batch_size": min_batch_size}
        core().Loader(0, core().LoaderOptions(**sizes, data_rank_and_world=data_rank_and_world))
        self._rank, self._world = data_rank_and_world
        self._dataset, self._batch_size = dataset, batch_size
        self._least = min_batch_size or self._world
        self._skip, self._rows, self.consumed = 0, iter(()), 0
        self.empty = True  # no row has been read in this epoch
        self.dropped = 0  # rows of the last batch, where that is too small

    def __len__(self):
        """NoLengthError, always: the length of a stream is not known."""
        raise NoLengthError("dataloader: the dataset is a stream, whose length is not known")

    def start(self, epoch):
        """Begins a loop over the rows, behind those that are to be skipped, of which every epoch
        before has as many as its batches hold. InvalidError: there are such, and an epoch has none.
        """
        del epoch
        self.empty = True
        rest = self._skip
        self._rows = iter(self._dataset)
        while rest:
            held = self._pass(rest)
            if held is None:
                break
            require(held, "dataloader: the dataset has no rows, so none can be skipped")
            rest -= held
            self._rows = iter(self._dataset)
        self._skip = 0  # not before: what reading raises leaves them to the next loop

    def _pass(self, count):
        """Leaves out `count` rows of this epoch; or gives the number of rows in its batches, where
        those are no more."""
        begin = count - count % self._batch_size  # in the batch that continues after them
        last = max(count + 1, begin + self._least)  # with so many rows, that batch is one
        read = sum(1 for _ in itertools.islice(self._rows, count))
        ahead = list(itertools.islice(self._rows, last - count))
        read += len(ahead)
        if read == last:
            self._rows = itertools.chain(ahead, self._rows)
            return None
        tail = read % self._batch_size
        return read - tail if tail < self._least else read

    def skip(self, count):
        """The next loop begins behind `count` rows of all ranks; they count as consumed."""
        self._skip = self.consumed = count

    def next(self):
        """This rank's rows of the next batch; [] at the end, or when the batch is too small."""
        batch = list(itertools.islice(self._rows, self._batch_size))
        self.empty = self.empty and not batch
        if len(batch) < self._least:
            self.dropped = len(batch)
            return []
        self.consumed += len(batch)
        each, more = divmod(len(batch), self._world)
        begin = self._rank * each + min(self._rank, more)
        return batch[begin : begin + each + (self._rank < more)]
