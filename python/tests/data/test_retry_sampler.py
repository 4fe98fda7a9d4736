"""RetrySampler: what it reads, gives and refuses."""

import pytest

from twinkle.dataloader import RetrySampler
from twinkle.errors import InvalidError


class Shaky:
    """Rows of which some fail, or are empty, the first times."""

    def __init__(self, fails):
        self.fails, self.reads = dict(fails), []

    def __getitem__(self, index):
        self.reads.append(index)
        if self.fails.get(index, 0) > 0:
            self.fails[index] -= 1
            if index == 2:
                raise OSError("no network")
            return {}
        return {"i": index}


def test_rows_are_read_until_they_are_there():
    rows = Shaky({2: 1, 3: 2})
    sampler = RetrySampler([3, 0, 2], rows, max_retries=3)
    assert list(sampler) == [3, 0, 2] and len(sampler) == 3
    assert rows.reads == [3, 3, 3, 0, 2, 2]
    rows = Shaky({})
    sampler = RetrySampler(range(4), rows, skip_samples=3)
    assert list(sampler) == [3] == rows.reads and len(sampler) == 1


@pytest.mark.parametrize(("index", "cause"), [(2, r"OSError\('no network'\)"), (3, "it is empty")])
def test_a_row_that_stays_bad_is_named(index, cause):
    rows = Shaky({index: 9})
    with pytest.raises(InvalidError, match=f"row {index} cannot be read, tried 4 times: {cause}"):
        list(RetrySampler([index], rows, max_retries=4))
    assert len(rows.reads) == 4
