"""The loader: what it reads, skips, shares out and collates."""

import pytest
from data_rows import dataset, dataset_meta, numbers

from twinkle.errors import InvalidError

pytestmark = pytest.mark.usefixtures("data_built")


class Counting:
    """Rows that count how often each is read."""

    def __init__(self, count):
        self.reads = [0] * count

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, index):
        self.reads[index] += 1
        return {"i": index}


def batches(loader):
    return [[row["i"] for row in batch] for batch in loader]


def test_every_sample_is_read_once_an_epoch():
    from twinkle.dataloader import DataLoader

    rows = Counting(10)
    loader = DataLoader(rows, batch_size=4, shuffle=True, seed=5)
    first = batches(loader)
    assert rows.reads == [1] * 10 and sorted(i for batch in first for i in batch) == list(range(10))
    assert [len(batch) for batch in first] == [4, 4, 2] and len(loader) == 3
    assert batches(loader) != first  # another epoch, another order
    assert batches(DataLoader(Counting(10), batch_size=4, shuffle=True, seed=5)) == first
    assert loader.get_state() == {"consumed_train_samples": 20}


def test_skipped_samples_are_not_read_and_len_honours_them():
    from twinkle.dataloader import DataLoader

    whole = DataLoader(Counting(10), batch_size=4, shuffle=True)
    first, second = batches(whole), batches(whole)
    rows = Counting(10)
    loader = DataLoader(rows, batch_size=4, shuffle=True)
    loader.skip_consumed_samples(4)
    assert len(loader) == 2 and batches(loader) == first[1:] and sum(rows.reads) == 6
    assert batches(loader) == second
    loader.resume_from_checkpoint(14)
    assert batches(loader) == second[1:]


def test_short_batches_meshes_callables_and_collators(monkeypatch):
    from twinkle import DeviceMesh
    from twinkle.dataloader import DataLoader

    def batch_lengths(**options):
        return [
            len(batch)
            for batch in DataLoader(lambda: dataset(numbers(10)), batch_size=4, **options)
        ]

    assert batch_lengths() == [4, 4, 2]
    assert batch_lengths(min_batch_size=4, remote_group="model", num_workers=2) == [4, 4]
    assert batch_lengths(drop_last=True) == [4, 4]
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with pytest.raises(InvalidError, match=r"has 2 ranks \(dp=2\), but 1 process is running"):
        batch_lengths(device_mesh=mesh)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert batch_lengths(device_mesh=mesh) == [2, 2, 1]
    with pytest.raises(
        InvalidError, match="batch_size is 3, it must be divisible by the 2 data ranks"
    ):
        DataLoader(numbers(3), batch_size=3, device_mesh=mesh)
    with pytest.raises(InvalidError, match="min_batch_size is 0, it must be an integer of at"):
        batch_lengths(min_batch_size=0)
    with pytest.raises(InvalidError, match="unknown argument 'sampler'"):
        batch_lengths(sampler=1)
    with pytest.raises(InvalidError, match="dataset is a int, it must be a Dataset"):
        DataLoader(5, batch_size=1)
    assert list(DataLoader(numbers(2), batch_size=2, collate_fn=len)) == [2]
    loader = DataLoader(numbers(4), batch_size=2)
    loader.set_processor("InputProcessor", padding_side="right")
    assert batches(loader) == [[0, 1], [2, 3]]
    one, _ = iter(loader), iter(loader)
    ended = "this epoch ended when another one was started"
    with pytest.raises(InvalidError, match=ended):
        next(one)
    ended += ", or by skip_consumed_samples"
    for starts in (False, True):
        loader = DataLoader(numbers(6), batch_size=2)
        one = iter(loader)
        next(one)
        loader.skip_consumed_samples(2)
        other = iter(loader) if starts else None  # the first since then, as that was
        with pytest.raises(InvalidError, match=ended):
            next(one)
    assert len(list(other)) == 2


def test_a_dataset_without_rows_is_refused():
    from twinkle.dataloader import DataLoader
    from twinkle.dataset import IterableDataset

    for rows in ([], lambda: []):
        with pytest.raises(InvalidError, match="data: the dataset has no rows: its source"):
            DataLoader(rows, batch_size=2)
    with pytest.raises(InvalidError, match="dataset: data has no rows"):
        DataLoader(lambda: dataset([]), batch_size=2)
    stream = IterableDataset()
    stream.add_dataset(dataset_meta(numbers(3)))
    stream.filter(lambda row: False)
    with pytest.raises(InvalidError, match="data: the dataset has no rows: its source"):
        list(DataLoader(stream, batch_size=2))


def test_a_loader_without_a_whole_batch_says_so(logged):
    from twinkle.dataloader import DataLoader

    assert list(DataLoader(numbers(3), batch_size=4, drop_last=True)) == []
    assert logged == ["dataloader: 3 rows make no batch of at least 4: a loop over this loader "
                      "does nothing"]  # fmt: skip


@pytest.mark.parametrize("is_stream", [False, True])
def test_rows_that_more_ranks_leave_out_are_told(is_stream, logged, monkeypatch):
    from twinkle import DeviceMesh
    from twinkle.dataloader import DataLoader
    from twinkle.dataset import DatasetMeta, IterableDataset

    def evaluated(rows, ranks, **options):
        """The rows that all ranks see of an epoch."""
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        seen = []
        for rank in range(ranks):
            monkeypatch.setenv("RANK", str(rank))
            source = IterableDataset(DatasetMeta(data=rows)) if is_stream else rows
            mesh = DeviceMesh.from_sizes(dp_size=ranks)
            loader = DataLoader(source, batch_size=4, device_mesh=mesh, **options)
            seen += [i for batch in batches(loader) for i in batch]
        return sorted(seen)

    for length, ranks in ((7, 1), (7, 2), (8, 4), (6, 2)):
        assert evaluated(numbers(length), ranks) == list(range(length))
    assert evaluated(numbers(7), 4, drop_last=True) == [0, 1, 2, 3]
    assert evaluated(numbers(7), 4, min_batch_size=4) == [0, 1, 2, 3]
    assert logged == []  # nobody misses anything that was not asked for
    left = 2 + is_stream  # a text is logged once
    assert evaluated(numbers(4 + left), 4) == [0, 1, 2, 3]
    assert logged == [
        f"dataloader: {left} rows at the end of each epoch are left out, which one process would "
        "read: each of 4 data ranks needs a row of every batch; choose a batch_size, now 4, that "
        "leaves none or 4 and more"
    ]


def test_loaders_and_datasets_show_what_they_hold():
    from twinkle.dataloader import DataLoader
    from twinkle.dataset import Dataset, IterableDataset

    rows = dataset(numbers(3))
    assert repr(rows) == "Dataset(3 rows: i)" and repr(Dataset()) == "Dataset(0 sources)"
    loader = DataLoader(rows, batch_size=2)
    assert repr(loader) == "DataLoader(Dataset(3 rows: i), batch_size=2, 2 batches)"
    assert repr(IterableDataset()) == "IterableDataset(no source)"

    class Row(dict):
        def __repr__(self):
            shown.append(self)
            return "row"

    shown = []
    of_list = repr(DataLoader([Row() for _ in range(1000)], batch_size=2))
    assert of_list == "DataLoader([row, row, row, row, row, row, ...], batch_size=2, 500 batches)"
    assert len(shown) == 6, "and not of a million rows"
