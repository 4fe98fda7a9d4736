"""StreamLoader: batches of rows that have no index, for DataLoader."""

import itertools

from twinkle.errors import InvalidError, require


class NoLengthError(InvalidError, TypeError):
    """What len() of a stream raises; list() takes a TypeError for an answer."""


class StreamLoader:
    """Every rank reads every row, and next() gives its slice of each batch of batch_size rows.
    InvalidError: a batch_size that the number of data ranks does not divide."""

    def __init__(self, dataset, batch_size, min_batch_size, data_rank_and_world):
        self._rank, self._world = data_rank_and_world
        require(
            batch_size % self._world == 0,
            f"dataloader: batch_size is {batch_size}, it must be divisible by the {self._world} "
            "data ranks",
        )
        self._dataset, self._batch_size = dataset, batch_size
        self._least = min_batch_size or self._world
        self._skip, self._rows, self.consumed = 0, iter(()), 0

    def __len__(self):
        """NoLengthError, always: the length of a stream is not known."""
        raise NoLengthError("dataloader: the dataset is a stream, whose length is not known")

    def start(self, epoch):
        """Begins a loop over the rows, behind those that are to be skipped. InvalidError: there are
        such, and the dataset gives no rows."""
        del epoch
        rest, self._skip = self._skip, 0
        self._rows = iter(self._dataset)
        while rest:
            read = sum(1 for _ in itertools.islice(self._rows, rest))
            require(read, "dataloader: the dataset has no rows, so none can be skipped")
            rest -= read
            if rest:
                self._rows = iter(self._dataset)

    def skip(self, count):
        """The next loop begins behind `count` rows of all ranks; they count as consumed."""
        self._skip = self.consumed = count

    def next(self):
        """This rank's rows of the next batch; [] at the end, or when the batch is too small."""
        batch = list(itertools.islice(self._rows, self._batch_size))
        if len(batch) < self._least:
            return []
        self.consumed += len(batch)
        each, more = divmod(len(batch), self._world)
        begin = self._rank * each + min(self._rank, more)
        return batch[begin : begin + each + (self._rank < more)]
