"""RetrySampler: indices of rows that can be read."""

from twinkle import checks
from twinkle.errors import InvalidError


class RetrySampler:
    """Gives the indices of a sampler, or of any iterable of them, each after its row was read. A
    row that raises or is empty is read again, max_retries times in all.

    skip_samples: so many of the first are left out. seed: accepted, nothing is drawn. A DataLoader
    needs none of it: bad rows have been refused before. InvalidError: max_retries that is no
    integer of at least 1, skip_samples none of at least 0; in a loop: a row that cannot be read.
    """

    def __init__(self, original_sampler, dataset, max_retries=20, skip_samples=0, seed=42):
        self.original_sampler, self.dataset, self.seed = original_sampler, dataset, seed
        self.max_retries = checks.integer("dataloader: max_retries", max_retries, 1)
        self.skip_samples = checks.integer("dataloader: skip_samples", skip_samples, 0)

    def __len__(self):
        return max(len(self.original_sampler) - self.skip_samples, 0)

    def __iter__(self):
        for number, index in enumerate(self.original_sampler):
            if number >= self.skip_samples:
                self._read(index)
                yield index

    def _read(self, index):
        error = None
        for _ in range(self.max_retries):
            try:
                if self.dataset[index]:
                    return
            except Exception as raised:  # whatever the user's data set raises
                error = raised
        raise InvalidError(
            f"dataloader: row {index} cannot be read, tried {self.max_retries} times: "
            f"{'it is empty' if error is None else repr(error)}"
        ) from error
