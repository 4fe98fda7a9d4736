"""IterableDataset and loaders over it: the rows of a Dataset, one after the other."""

import itertools
import json

import pytest
from data_rows import conversation, numbers

from twinkle import DeviceMesh
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta, IterableDataset, LazyDataset
from twinkle.errors import InvalidError, NoLengthError, NotAvailableError, NotFoundError
from twinkle.template import Template

pytestmark = pytest.mark.usefixtures("data_built")


def plain(rows):
    return [{k: getattr(v, "tolist", lambda v=v: v)() for k, v in row.items()} for row in rows]


def square(columns):
    return {"square": [i * i for i in columns["i"]]}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".txt"])
def test_files_give_the_rows_of_a_dataset(tmp_path, suffix):
    rows = [{"text": f"ä {i}"} for i in range(5)]
    file = tmp_path / f"train{suffix}"
    if suffix == ".txt":
        file.write_text("".join(f"{row['text']}\n" for row in rows))
    else:
        Dataset(DatasetMeta(data=rows)).save_as(file)
    stream = IterableDataset(DatasetMeta(str(file)))
    assert list(stream) == list(stream) == list(Dataset(DatasetMeta(str(file)))) == rows
    assert list(IterableDataset(DatasetMeta(str(tmp_path)))) == rows
    part = IterableDataset(DatasetMeta(str(file), data_slice=range(1, 5, 2)))
    assert list(part) == [rows[1], rows[3]]


def test_lines_are_read_as_they_are_asked_for(tmp_path):
    (tmp_path / "a.jsonl").write_text('\ufeff{"i": 0}\n\n{"i": 1}\nbroken\n')
    rows = iter(IterableDataset(DatasetMeta(str(tmp_path / "a.jsonl"))))
    assert [next(rows), next(rows)] == numbers(2)
    with pytest.raises(InvalidError, match=r"a\.jsonl line 4 column 1: syntax error"):
        next(rows)
    endless = IterableDataset(DatasetMeta(data=lambda: ({"i": i} for i in itertools.count())))
    endless.map(square)
    assert [row["square"] for row in itertools.islice(endless, 3)] == [0, 1, 4]


def test_work_is_that_of_a_dataset(tiny_llama_dir):
    made = []
    for kind in (Dataset, IterableDataset):
        rows = kind(DatasetMeta(data=[conversation("a" * n) for n in (1, 40, 2, 3)]))
        rows.map(lambda row: {"n": row["id"]}, batched=False)
        rows.filter(lambda row: row["n"] != 2)
        rows.set_template(
            "Template", model_id=tiny_llama_dir, max_length=40, truncation_strategy="delete"
        )
        rows.check()
        rows.encode()
        made.append(plain(rows))
    assert made[0] == made[1] and [row["n"] for row in made[1]] == [1, 3]
    splits = IterableDataset(DatasetMeta(data=[conversation("a" * 40)]))
    splits.set_template(
        "Template", model_id=tiny_llama_dir, max_length=20, truncation_strategy="split"
    )
    splits.encode()
    assert [row["length"] for row in splits][:2] == [20, 20]


@pytest.mark.parametrize(
    ("interleave", "expected"), [(True, "a0 b0 a1 b1"), (False, "a0 a1 a2 b0 b1")]
)
def test_sources_are_mixed_each_with_its_own_work(interleave, expected):
    metas = [DatasetMeta(data=numbers(3)), DatasetMeta(data={"i": [0, 1]})]
    rows = IterableDataset(metas[0])
    rows.add_dataset(metas[1])
    with pytest.raises(InvalidError, match=r"it has 2 sources: call mix_dataset\(\) first"):
        list(rows)
    for meta, letter in zip(metas, "ab", strict=True):
        rows.map(lambda row, x=letter: {"n": f"{x}{row['i']}"}, dataset_meta=meta, batched=False)
    rows.mix_dataset(interleave=interleave)
    assert " ".join(row["n"] for row in rows) == expected


def test_a_hub_streams(monkeypatch):
    from twinkle.hub import HubOperation

    asked = []

    def load(*args, **kwargs):
        asked.append((args, kwargs))
        return iter(numbers(2))

    monkeypatch.setattr(HubOperation, "load_dataset", load)
    rows = IterableDataset(DatasetMeta("hf://o/n", split="test"), revision="v1")
    assert not asked
    assert list(rows) == numbers(2)
    assert asked == [(("hf://o/n", "default", "test"), {"revision": "v1", "streaming": True})]


def test_loaders_batch_skip_and_go_on():
    rows = IterableDataset(DatasetMeta(data=numbers(10)))
    loader = DataLoader(rows, batch_size=4)

    def epoch():
        return [[row["i"] for row in batch] for batch in loader]

    assert epoch() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == epoch()
    assert loader.get_state() == {"consumed_train_samples": 20}
    loader.resume_from_checkpoint(4)
    assert epoch() == [[4, 5, 6, 7], [8, 9]] and loader.get_state()["consumed_train_samples"] == 10
    loader.skip_consumed_samples(14)
    assert epoch() == [[4, 5, 6, 7], [8, 9]]
    assert [len(batch) for batch in DataLoader(rows, batch_size=4, drop_last=True)] == [4, 4]
    with pytest.raises(InvalidError, match="the dataset is a stream, whose length is not known"):
        len(loader)
    with pytest.raises(InvalidError, match="shuffle is True, but the dataset is a stream"):
        DataLoader(rows, batch_size=4, shuffle=True)

    class Breaks:
        """Once, at its second row."""

        fails = True

        def __iter__(self):
            for row in numbers(6):
                if self.fails and row["i"] == 1:
                    self.fails = False
                    raise OSError("no network")
                yield row

    loader = DataLoader(Breaks(), batch_size=2)
    loader.resume_from_checkpoint(4)
    with pytest.raises(OSError, match="no network"):
        epoch()
    assert epoch() == [[4, 5]] and loader.get_state()["consumed_train_samples"] == 6
    empty = DataLoader(IterableDataset(DatasetMeta(data=[])), batch_size=1)
    with pytest.raises(InvalidError, match="the dataset has no rows: its source is empty"):
        list(empty)
    empty.skip_consumed_samples(1)
    with pytest.raises(InvalidError, match="the dataset has no rows, so none can be skipped"):
        list(empty)


@pytest.mark.parametrize("options", [{}, {"min_batch_size": 2}, {"drop_last": True}])
@pytest.mark.parametrize("length", [1, 3, 4, 8, 9, 10, 11])
def test_a_loader_resumes_where_an_indexed_one_does_in_every_epoch(length, options):
    rows = numbers(length)
    for consumed in range(30):
        epochs = []
        for source in (rows, IterableDataset(DatasetMeta(data=rows))):
            loader = DataLoader(source, batch_size=4, **options)
            if not list(loader):
                break  # whoever has no batches has no rows to skip
            loader.skip_consumed_samples(consumed)
            epochs.append([list(loader), list(loader), loader.get_state()])
        assert not epochs or epochs[0] == epochs[1], consumed
    rows = IterableDataset(DatasetMeta(data=numbers(10)))
    loader = DataLoader(rows, batch_size=4, drop_last=True)
    loader.skip_consumed_samples(12)
    assert [row["i"] for row in next(iter(loader))] == [4, 5, 6, 7]


def test_a_stream_without_a_whole_batch_has_no_rows_to_skip():
    loader = DataLoader(IterableDataset(DatasetMeta(data=numbers(3))), batch_size=4, drop_last=True)
    loader.skip_consumed_samples(5)
    with pytest.raises(InvalidError, match="the dataset has no rows, so none can be skipped"):
        list(loader)


@pytest.mark.parametrize(
    ("sizes", "ranks", "text"),
    [
        ({"batch_size": 2, "min_batch_size": 3}, 1, "min_batch_size is 3, it must lie between"),
        ({"batch_size": 4, "min_batch_size": 1}, 2, "min_batch_size is 1, it must be at least"),
        ({"batch_size": 3}, 2, "batch_size is 3, it must be divisible by the 2 data ranks$"),
    ],
)
def test_a_stream_refuses_sizes_in_the_words_of_an_index(sizes, ranks, text, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    said = []
    for source in (numbers(9), IterableDataset(DatasetMeta(data=numbers(9)))):
        with pytest.raises(InvalidError, match=text) as error:
            DataLoader(source, device_mesh=DeviceMesh.from_sizes(dp_size=ranks), **sizes)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_ranks_share_batches_as_indexed_ones_do():
    from twinkle.core import core

    for length in (3, 4, 7, 8):
        for world in (1, 2, 4):
            for rank in range(world):
                place = {"batch_size": 4, "min_batch_size": 0, "data_rank_and_world": (rank, world)}
                options = core().LoaderOptions(**place)
                stream = core().StreamLoader(range(length), options)
                indexed = core().Loader(length, options)
                for loader in (stream, indexed):
                    loader.start(0)
                while True:
                    batch = stream.next()
                    assert list(indexed.next()) == batch
                    assert stream.consumed == indexed.consumed
                    if not batch:
                        break


def test_rows_are_saved_as_they_are_read(tmp_path):
    rows = IterableDataset(DatasetMeta(data=numbers(3)))
    rows.save_as(tmp_path / "a.jsonl", mode="training")
    assert list(rows) == numbers(3)
    rows.flush_save()
    assert list(map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())) == numbers(3)
    rows.save_as(tmp_path / "b.json")
    assert (tmp_path / "b.json").read_text() == (tmp_path / "a.jsonl").read_text()


def test_what_a_stream_cannot_do_is_named(tmp_path):
    rows = IterableDataset(DatasetMeta(data=numbers(2)), streaming=True)
    with pytest.raises(InvalidError, match="length is not known: count its rows in a loop"):
        len(rows)
    assert issubclass(NoLengthError, TypeError) and issubclass(NoLengthError, NotImplementedError)
    with pytest.raises(TypeError):
        rows[0]
    for call, text in (
        (lambda: rows.save_as(tmp_path / "a.jsonl", mode="later"), "mode is 'later', it must be"),
        (rows.encode, "encode needs a template"),
        (lambda: rows.map(square, colour=1), "map: unknown argument 'colour'"),
        (lambda: rows.add_dataset("a.jsonl"), "dataset_meta is 'a.jsonl', it must be a"),
        (lambda: IterableDataset(DatasetMeta(data=[], data_slice=[1])),
         r"data_slice is \[1\], for a stream it must be an increasing range"),
        (lambda: list(IterableDataset(DatasetMeta(data=[3]))), "memory row 0 is 3, it must be"),
        (lambda: IterableDataset().mix_dataset(), "there is nothing to mix"),
        (lambda: list(IterableDataset()), "it has no rows"),
    ):  # fmt: skip
        with pytest.raises(InvalidError, match=text):
            call()
    with pytest.raises(NotAvailableError, match=r"cast_column.*needs rows that can be read twice"):
        rows.cast_column("a", decode=False)
    with pytest.raises(NotFoundError, match="neither a file here nor an id"):
        IterableDataset(DatasetMeta("none.jsonl"))
    rows.map(lambda columns: {"x": [columns["y"]]})
    with pytest.raises(InvalidError, match=r"memory row 0: <lambda>: KeyError\('y'\)"):
        list(rows)
    rows = IterableDataset(DatasetMeta(data=numbers(1)))
    rows.filter(lambda row: "yes")
    with pytest.raises(InvalidError, match="<lambda>: what it returned is 'yes', it must be True"):
        list(rows)


@pytest.mark.parametrize("kind", [Dataset, LazyDataset, IterableDataset])
def test_what_a_template_in_python_raises_in_check_names_the_row(kind, tiny_llama_dir):
    class Mine(Template):
        def check(self, trajectory):
            return trajectory["absent"]

    rows = kind(DatasetMeta(data=[conversation("a")]))
    rows.set_template(Mine, model_id=tiny_llama_dir)
    with pytest.raises(InvalidError, match=r"row [01].*: check: KeyError\('absent'\)"):
        rows.check()
        list(rows)


@pytest.mark.parametrize("kind", [Dataset, LazyDataset, IterableDataset])
def test_a_filter_takes_a_row_at_a_time(kind):
    rows = kind(DatasetMeta(data=numbers(3)))
    rows.filter(lambda row: row["i"] > 0, batched=False)
    assert list(rows) == numbers(3)[1:]
    with pytest.raises(InvalidError, match="filter takes a row at a time, not batched=True"):
        rows.filter(lambda row: True, batched=True)


@pytest.mark.parametrize("kind", [Dataset, LazyDataset, IterableDataset])
def test_a_loaders_option_without_a_source_is_refused(kind):
    kind(num_proc=2, revision=None, trust_remote_code=False)  # holds in any case
    for name, value in (("revision", "v1"), ("trust_remote_code", True), ("streaming", True)):
        if name == "streaming" and kind is not LazyDataset:
            assert type(kind(streaming=True)) is IterableDataset
            continue
        with pytest.raises(InvalidError, match=f"dataset: {name} is an option of a hub's lo"):
            kind(**{name: value})
