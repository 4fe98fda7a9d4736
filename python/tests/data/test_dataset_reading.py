"""Reading data sets from files, memory and hubs; `datasets` is the reference."""

import json
import math
import random
from pathlib import Path

import pytest
from data_rows import dataset, numbers

from twinkle.core import core
from twinkle.dataset import DatasetMeta
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError

pytestmark = pytest.mark.usefixtures("data_built")


@pytest.mark.parametrize(
    "name", ["gsm8k_train.jsonl", "self_cognition.jsonl", "alpaca_en_demo.json"]
)
def test_reads_what_the_datasets_package_reads(data_dir, name, tmp_path):
    reference = pytest.importorskip("datasets").load_dataset(
        "json", data_files=str(data_dir / name), split="train", cache_dir=str(tmp_path)
    )
    ours = dataset(data_dir / name)
    assert len(ours) == len(reference)
    assert list(ours) == list(reference)


def test_reads_csv_as_the_datasets_package_does(data_dir, tmp_path):
    reference = pytest.importorskip("datasets")
    file = tmp_path / "gsm8k.csv"
    rows = reference.load_dataset(
        "json",
        data_files=str(data_dir / "gsm8k_train.jsonl"),
        split="train",
        cache_dir=str(tmp_path),
    )
    rows = rows.map(
        lambda row, i: {"n": i, "half": i / 2, "even": i % 2 == 0, "none": ""}, with_indices=True
    )
    rows.to_csv(str(file))
    wanted = reference.load_dataset(
        "csv", data_files=str(file), split="train", na_filter=False, cache_dir=str(tmp_path)
    )
    assert list(dataset(file)) == list(wanted)


@pytest.mark.parametrize("format", ["jsonl", "json"])
def test_random_rows_come_back_equal_and_python_reads_them_too(tmp_path, format):
    draw = random.Random(7)

    def value(depth):
        kind = draw.randrange(7 if depth else 5)
        if kind == 0:
            return draw.choice([None, True, False])
        if kind == 1:
            return draw.choice([draw.randrange(-(2**63), 2**63), draw.randrange(100)])
        if kind == 2:
            return draw.choice(
                [draw.gauss(0, 1), math.ldexp(draw.random(), draw.randrange(-1000, 1000))]
            )
        if kind in (3, 4):
            return "".join(
                draw.choice('aB ",\\{}[]\n\r\t\x01é你😀') for _ in range(draw.randrange(9))
            )
        if kind == 5:
            return [value(depth - 1) for _ in range(draw.randrange(4))]
        return {f"k{i}": value(depth - 1) for i in range(draw.randrange(4))}

    rows = [{"a": value(3), "b": value(3)} for _ in range(300)]
    file = tmp_path / f"rows.{format}"
    dataset(rows).save_as(file)
    assert list(dataset(file)) == rows
    assert list(map(json.loads, file.read_text().splitlines())) == rows
    dataset(rows[:1]).save_as(file)
    assert list(dataset(file)) == rows[:1]
    dataset([{"messages": [1, 2]}]).save_as(file)
    assert list(dataset(file)) == [{"messages": [1, 2]}], "and not two rows"
    (tmp_path / "python.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(dataset(tmp_path / "python.jsonl")) == rows


def test_a_broken_line_is_named_with_its_number(tmp_path):
    file = tmp_path / "broken.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\n{"a": 3\n')
    with pytest.raises(InvalidError, match=r"broken\.jsonl line 3 column \d+: incomplete JSON"):
        dataset(file)
    with pytest.raises(NotFoundError, match=r"neither a file here nor an id"):
        dataset("nowhere.jsonl")


def test_a_bad_row_of_an_array_is_named_with_its_line(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text('[\n  {"a": 1},\n  {\n    "a": \n  }\n]\n')
    with pytest.raises(InvalidError, match=r"rows\.json line 5 column 3, row 1: syntax error"):
        dataset(file)
    file.write_text('[\n  {"a": 1},\n  7\n]\n')
    with pytest.raises(InvalidError, match=r"rows\.json line 3, row 1: the row is a number"):
        dataset(file)
    file.write_text('[\n  {"a": 1},\n\n  {"a": 2}]')
    with pytest.raises(InvalidError, match=r"rows\.json line 4, row 1: .*ZeroDivisionError"):
        dataset(file).map(lambda row: {"b": 1 // (row["a"] - 2)}, batched=False)


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        ("-1e999", r"the number -1e999 is beyond the range of a double, 1\.8e308"),
        ("18446744073709551616", "the integer 18446744073709551616 is beyond 64 bits"),
    ],
)
def test_numbers_out_of_range_are_named_as_they_are_written(tmp_path, number, cause):
    from twinkle.dataset import DatasetMeta, IterableDataset

    for name, text, place in (
        ("a.jsonl", '{{"a": 1}}\n{{"a": [{}]}}\n', "line 2 column 8"),
        ("a.json", '[{{"a": 1}},\n{{"a": [{}]}}]', "line 2 column 8, row 1"),
        ("b.json", '{{"a": [1,\n{}]}}', "line 2 column 1"),
    ):
        (tmp_path / name).write_text(text.format(number))
        error = rf"{name} {place}: {cause}; write it as a string"
        with pytest.raises(InvalidError, match=error):
            dataset(tmp_path / name)
        with pytest.raises(InvalidError, match=error):
            list(IterableDataset(DatasetMeta(str(tmp_path / name))))


def test_a_file_that_cannot_be_opened_leaves_no_descriptor(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InvalidError, match="is a folder, it must be a regular file"):
        core().check_file(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_another_split_than_the_usual_must_be_in_a_files_name(tmp_path):
    for name in ("a.jsonl", "B-Test.jsonl"):
        (tmp_path / name).write_text(f'{{"a": "{name}"}}\n')
    assert len(dataset(tmp_path)) == 2
    assert dataset(tmp_path, split="test")["a"] == ["B-Test.jsonl"]
    assert len(dataset(tmp_path / "B-Test.jsonl", split="test")) == 1
    assert len(dataset(tmp_path / "a.jsonl")) == 1
    with pytest.raises(
        InvalidError,
        match=r"data: split is 'val', which is in no file's name in .*; there are "
        r"B-Test\.jsonl, a\.jsonl: name one of them as dataset_id, or leave split out to read all",
    ):
        dataset(tmp_path, split="val")
    with pytest.raises(
        InvalidError,
        match=r"split is 'test', which is not in the name of .*a\.jsonl: leave split out to read",
    ):
        dataset(tmp_path / "a.jsonl", split="test")
    for i in range(9):
        (tmp_path / f"c{i}.jsonl").touch()
    with pytest.raises(InvalidError, match=r"c5\.jsonl, \.\.\.: name one"):
        dataset(tmp_path, split="val")


@pytest.mark.parametrize("name", ["a.JSONL", "a.Json", "a.CSV", "a.TXT", "a.Parquet", "a.ARROW"])
def test_extensions_count_in_any_case(tmp_path, name):
    from twinkle.dataset import DatasetMeta, IterableDataset

    file = tmp_path / name
    rows = [{"text": "x"}, {"text": "y"}]
    if name == "a.TXT":
        file.write_text("x\ny\n")
    elif name == "a.ARROW":
        feather = pytest.importorskip("pyarrow.feather")
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        feather.write_feather(table, str(file), compression="uncompressed")
    else:
        if name == "a.Parquet":
            pytest.importorskip("pyarrow")
        dataset(rows).save_as(file)
    assert list(dataset(file)) == list(dataset(tmp_path)) == rows
    assert list(IterableDataset(DatasetMeta(str(file)))) == rows


def test_another_extension_is_refused_with_all_that_are_read(tmp_path):
    (tmp_path / "a.xml").touch()
    with pytest.raises(
        InvalidError,
        match=r"a\.xml has extension '\.xml', it must be one of \.jsonl, \.json, \.csv, \.tsv, "
        r"\.txt, \.parquet, \.pq, \.arrow, \.lance$",
    ):
        dataset(tmp_path / "a.xml")


def test_slices_wrap_and_memory_takes_rows_columns_and_callables():
    assert [row["i"] for row in dataset(numbers(3), data_slice=range(5))] == [0, 1, 2, 0, 1]
    assert list(dataset({"i": [0, 1]})) == numbers(2)
    assert list(dataset(lambda: ({"i": i} for i in range(2)))) == numbers(2)
    rows = dataset(numbers(3))
    assert rows[-1] == {"i": 2} and rows[1:] == {"i": [1, 2]} and rows["i"] == [0, 1, 2]
    with pytest.raises(IndexError, match="row 3 is outside the dataset of 3 rows"):
        rows[3]
    with pytest.raises(KeyError, match="no row has a field 'x'"):
        rows["x"]
    with pytest.raises(InvalidError, match="data_slice is 5, it must be an iterable"):
        dataset(numbers(3), data_slice=5)
    with pytest.raises(
        InvalidError, match="a row index of data_slice is 'a', it must be an integer"
    ):
        dataset(numbers(3), data_slice=["a"])
    with pytest.raises(InvalidError, match="row 1 is a int, it must be a dict"):
        dataset([{}, 1])
    with pytest.raises(InvalidError, match="neither a dataset_id nor data"):
        dataset("")


def test_a_datasets_dataset_is_data():
    reference = pytest.importorskip("datasets").Dataset.from_list(numbers(3))
    from twinkle.dataset import Dataset, DatasetMeta

    assert list(Dataset(DatasetMeta(data=reference))) == numbers(3)


def test_ids_come_from_aliases_local_paths_and_then_hubs(tmp_path, monkeypatch):
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "test.jsonl").write_text('{"a": 2}\n')
    aliases = f"swift/x={tmp_path / 'train.jsonl'}, ms://o/dir={tmp_path}, gone/x=/nowhere"
    monkeypatch.setenv("TWINKLE_DATASET_ID_ALIASES", aliases)
    assert dataset("ms://swift/x")[0] == dataset("swift/x")[0] == {"a": 1}
    assert list(dataset("ms://o/dir", split="test")) == [{"a": 2}]
    assert list(dataset("ms://o/dir")) == [{"a": 1}]
    with pytest.raises(
        NotFoundError, match="alias of 'gone/x' is '/nowhere', which does not exist"
    ):
        dataset("gone/x")
    with pytest.raises(InvalidError, match="begins with 'ftp://', it must be hf:// or ms://"):
        dataset("ftp://o/x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        NotFoundError, match=r"holds no file of \.jsonl, \.json, \.csv, \.tsv, \.txt"
    ):
        dataset(tmp_path / "empty")
    monkeypatch.setenv("TWINKLE_DATASET_ID_ALIASES", "x")
    with pytest.raises(InvalidError, match="has 'x', it must have the form id=path"):
        dataset("swift/x")


@pytest.mark.parametrize("scheme, package", [("hf", "datasets"), ("ms", "modelscope")])
def test_a_hub_without_its_package_names_it_and_the_alternative(monkeypatch, scheme, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    monkeypatch.setitem(__import__("sys").modules, "modelscope.msdatasets", None)
    with pytest.raises(NotAvailableError, match=f"pip install {package}; or name a local"):
        dataset(f"{scheme}://owner/name")
    monkeypatch.setenv("TWINKLE_FORBID_HF", "1")
    with pytest.raises(InvalidError, match="TWINKLE_FORBID_HF is set"):
        dataset("hf://owner/name")


@pytest.mark.parametrize("name", ["split", "subset_name"])
def test_rows_that_are_given_have_no_split_and_no_subset(name):
    with pytest.raises(InvalidError, match=f"dataset: {name} is 'test', but the rows are given"):
        DatasetMeta(data=numbers(2), **{name: "test"})


def test_hub_rows_are_loaded_with_subset_and_split(monkeypatch):
    reference = pytest.importorskip("datasets")
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        if args[0] == "bad/name":
            raise ValueError("no such\nthing")
        return reference.Dataset.from_list(numbers(2))

    monkeypatch.setattr(reference, "load_dataset", load_dataset)
    assert len(dataset("hf://o/n", subset_name="main", split="test")) == 2
    assert calls == [(("o/n", "main"), {"split": "test"})]
    with pytest.raises(NotFoundError, match=r"cannot fetch 'hf://bad/name': no such$"):
        dataset("hf://bad/name")


def test_a_missing_file_of_real_data_skips_its_test_by_name(data_dir, tmp_path):
    with pytest.raises(pytest.skip.Exception, match=r"TWINKLE_TEST_DATA names has no none\.jsonl"):
        _ = type(data_dir)(tmp_path) / "none.jsonl"
    (tmp_path / "none.jsonl").touch()
    assert type(data_dir)(tmp_path) / "none.jsonl" == tmp_path / "none.jsonl"
