"""LazyDataset: the same rows as of a Dataset, made when they are read."""

import pytest
from data_rows import conversation, numbers

from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta, LazyDataset
from twinkle.errors import InvalidError
from twinkle.preprocessor import Filter, Preprocessor, SelfCognitionProcessor

pytestmark = pytest.mark.usefixtures("data_built")

COGNITION = [{"query": f"Who {i}?", "response": "{{NAME}}" * i, "tag": "en"} for i in range(5)]


class Counted(Preprocessor):
    def __init__(self):
        self.calls = 0

    def __call__(self, columns):
        self.calls += len(columns["i"])
        return {"square": [i * i for i in columns["i"]]}


class Even(Filter):
    def __call__(self, row):
        return row["square"] % 2 == 0


def plain(rows):
    return [{k: getattr(v, "tolist", lambda v=v: v)() for k, v in row.items()} for row in rows]


def test_rows_equal_those_of_a_dataset_that_works_at_once(tiny_llama_dir):
    made = []
    for kind in (Dataset, LazyDataset):
        rows = kind(DatasetMeta(data=COGNITION, data_slice=[4, 2, 1]))
        rows.map(SelfCognitionProcessor("Nova", "Sky"))
        rows.map(lambda row: {"length": len(row["query"])}, batched=False)
        rows.set_template("Template", model_id=tiny_llama_dir)
        rows.check()
        rows.encode()
        made.append(plain(rows))
    assert made[0] == made[1] and len(made[0]) == 3
    assert made[0][0]["messages"][2]["content"] == "Nova" * 4


def test_work_is_done_for_the_rows_that_are_read_only():
    work = Counted()
    rows = LazyDataset(DatasetMeta(data=numbers(100)))
    rows.map(work)
    assert work.calls == 0 and len(rows) == 100
    assert rows[7] == {"i": 7, "square": 49} and rows[-1]["i"] == 99
    assert work.calls == 2
    assert rows[:3]["square"] == [0, 1, 4] and work.calls == 5
    batch = next(iter(DataLoader(rows, batch_size=4)))
    assert [row["square"] for row in batch] == [0, 1, 4, 9] and work.calls == 9


def test_a_filter_sees_what_the_maps_make_and_is_done_at_once():
    work = Counted()
    rows = LazyDataset(DatasetMeta(data=numbers(10)))
    rows.map(work)
    rows.filter(Even)
    assert work.calls == 10 and len(rows) == 5
    assert [row["i"] for row in rows] == [0, 2, 4, 6, 8]


def test_rows_may_hold_any_object(tmp_path):
    picture = object()
    rows = LazyDataset(DatasetMeta(data=numbers(2)))
    rows.map(lambda columns: {"image": [picture]})
    assert rows[1]["image"] is picture
    with pytest.raises(InvalidError, match="image"):
        rows.save_as(tmp_path / "a.jsonl")
    rows = LazyDataset(DatasetMeta(data=numbers(3)))
    rows.map(Counted())
    rows.save_as(tmp_path / "a.jsonl")
    assert list(Dataset(DatasetMeta(str(tmp_path / "a.jsonl")))) == list(rows)


@pytest.mark.parametrize(
    ("interleave", "expected"),
    [(True, ["a0", "b0", "a1", "b1", "a2", "b0"]), (False, ["a0", "a1", "a2", "b0", "b1"])],
)
def test_sources_are_mixed_each_with_its_own_work(interleave, expected):
    metas = [DatasetMeta(data=numbers(3)), DatasetMeta(data=numbers(2))]
    rows = LazyDataset(metas[0])
    rows.add_dataset(metas[1])
    with pytest.raises(InvalidError, match=r"it has 2 sources: call mix_dataset\(\) first"):
        len(rows)
    for meta, letter in zip(metas, "ab", strict=True):
        rows.map(lambda row, x=letter: {"n": f"{x}{row['i']}"}, dataset_meta=meta, batched=False)
    rows.mix_dataset(interleave=interleave)
    assert len(rows) == len(expected) and [row["n"] for row in rows] == expected
    with pytest.raises(InvalidError, match="map must come before mix_dataset"):
        rows.map(Counted())
    with pytest.raises(InvalidError, match="add_dataset must come before mix_dataset"):
        rows.add_dataset(DatasetMeta(data=numbers(1)))
    with pytest.raises(IndexError, match=f"row {len(expected)} is outside"):
        rows[len(expected)]


def test_a_bad_row_is_named_when_it_is_read(tiny_llama_dir, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"i": 1}\n{"j": 2}\n')
    rows = LazyDataset(DatasetMeta(str(tmp_path / "a.jsonl")))
    rows.map(Counted)
    assert rows[0]["square"] == 1
    with pytest.raises(InvalidError, match=r"a\.jsonl line 2: Counted: KeyError\('i'\)"):
        rows[1]
    for returned, text in (
        ({"n": [1, 2]}, "returned 2 rows for 1"),
        (5, "returned int, it must return a dict of columns"),
        ([3], "returned list, it must return a dict of columns"),
    ):
        rows = LazyDataset(DatasetMeta(data=numbers(1)))
        rows.map(lambda columns, returned=returned: returned)
        with pytest.raises(InvalidError, match=f"memory row 0: <lambda>: .*{text}"):
            rows[0]
    rows = LazyDataset(DatasetMeta(data=numbers(1)))
    rows.map(lambda columns: {"n": [1, 2]}, remove_columns=["i"])
    with pytest.raises(InvalidError, match="it must return one row for one row"):
        rows[0]
    rows = LazyDataset(DatasetMeta(data=[conversation("Nova"), {"messages": []}]))
    with pytest.raises(InvalidError, match=r"encode needs a template: call set_template\(\)"):
        rows.encode()
    for strategy, text in (("raise", "messages"), ("delete", "the row encodes to nothing")):
        again = LazyDataset(DatasetMeta(data=[conversation("Nova" * 20), {"messages": []}]))
        length = 8192 if strategy == "raise" else 3
        again.set_template(
            "Template", model_id=tiny_llama_dir, truncation_strategy=strategy, max_length=length
        )
        again.encode()
        with pytest.raises(InvalidError, match=f"row {int(strategy == 'raise')}.*{text}"):
            again[int(strategy == "raise")]
    rows.set_template("Template", model_id=tiny_llama_dir)
    rows.check()
    assert rows[0]["id"] == 4
    with pytest.raises(InvalidError, match=r"row 1.*the template cannot encode the row"):
        rows[1]
    rows.set_template("Template", model_id=tiny_llama_dir, truncation_strategy="split")
    with pytest.raises(InvalidError, match="truncation_strategy is 'split', which makes several"):
        rows.encode()


def test_what_a_dataset_refuses_is_refused():
    rows = LazyDataset(DatasetMeta(data=numbers(1)))
    for call, text in (
        (lambda: rows.map(Counted, colour=1), "map: unknown argument 'colour'"),
        (lambda: rows.map(5), "must be a Preprocessor"),
        (lambda: rows.map(Counted, batched=3), "batched is 3, it must be True or False"),
        (lambda: rows.filter(5), "must be a DataFilter"),
        (lambda: rows.mix_dataset(interleave=3), "interleave is 3"),
        (lambda: LazyDataset().mix_dataset(), "there is nothing to mix"),
        (lambda: len(LazyDataset()), "it has no rows"),
    ):
        with pytest.raises(InvalidError, match=text):
            call()
    assert list(rows) == numbers(1)
