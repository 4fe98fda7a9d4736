"""Text files and tables: read as `datasets` and pyarrow read them, written so that both read them
back, and rows saved while a run reads them."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from data_rows import conversation, dataset, numbers

from twinkle.dataloader import DataLoader
from twinkle.dataset import DatasetMeta, IterableDataset
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError

pytestmark = pytest.mark.usefixtures("data_built")

ROWS = [{"i": 1, "s": "a\nb", "l": [1.5, None], "d": {"x": True}},
        {"i": 2**62, "s": None, "l": [], "d": {"x": None}}]  # fmt: skip


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow")


def write(arrow, rows, path):
    import pyarrow.feather
    import pyarrow.parquet

    table = arrow.Table.from_pylist(rows)
    if path.suffix != ".arrow":
        pyarrow.parquet.write_table(table, path)
    elif path.stem == "stream":
        with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
    else:
        pyarrow.feather.write_feather(table, str(path))


@pytest.mark.parametrize("name", ["a.parquet", "a.pq", "stream.arrow", "file.arrow"])
def test_tables_are_read_row_by_row(arrow, tmp_path, name):
    write(arrow, ROWS, tmp_path / name)
    rows = dataset(tmp_path / name, data_slice=[1, 0])
    assert list(rows) == [ROWS[1], ROWS[0]]
    (tmp_path / "more").mkdir()
    write(arrow, ROWS[:1], tmp_path / "more" / f"train-{name}")
    write(arrow, ROWS[1:], tmp_path / "more" / f"test-{name}")
    assert list(dataset(tmp_path / "more", split="test")) == ROWS[1:]


def test_a_parquet_of_real_rows_equals_what_datasets_reads(arrow, data_dir, tmp_path):
    reference = pytest.importorskip("datasets")
    given = reference.load_dataset(
        "json", data_files=str(data_dir / "alpaca_en_demo.json"), split="train",
        cache_dir=str(tmp_path),
    )  # fmt: skip
    given.to_parquet(str(tmp_path / "a.parquet"))
    given.save_to_disk(str(tmp_path / "disk"))
    assert list(dataset(tmp_path / "a.parquet")) == list(given)
    assert list(dataset(next((tmp_path / "disk").glob("*.arrow")))) == list(given)


def test_lines_of_a_text_file_equal_what_datasets_reads(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("erste Zeile\n\n  zwei \u2028 drei\x0b\x0c\r\nvier\x85 fünf 🙂\nlast".encode())
    reference = pytest.importorskip("datasets").load_dataset(
        "text", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert list(dataset(file)) == list(reference)
    assert len(dataset(file)) == 5
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InvalidError, match=r"empty\.txt has no rows"):
        dataset(tmp_path / "empty.txt")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_damaged_file_is_named(arrow, tmp_path, name):
    write(arrow, ROWS, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for content in (whole[:-20], whole[: len(whole) // 2], b"no table", b""):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidError, match=rf"dataset: .*{name}: "):
            dataset(tmp_path / name)


def test_what_rows_cannot_hold_is_named(arrow, tmp_path):
    import datetime

    write(arrow, [{"a": 1, "t": datetime.datetime(2026, 1, 1)}], tmp_path / "a.parquet")
    with pytest.raises(InvalidError, match=r"row 0.*t.*datetime"):
        dataset(tmp_path / "a.parquet")
    write(arrow, [{"image": b"\x89PNG"}], tmp_path / "b.parquet")
    with pytest.raises(InvalidError, match=r"row 0.*image.*bytes"):
        dataset(tmp_path / "b.parquet")
    (tmp_path / "a.txt").write_bytes(b"ok\n\xff\xfe")
    with pytest.raises(InvalidError, match=r"a\.txt line 2, byte 1: invalid UTF-8"):
        dataset(tmp_path / "a.txt")
    rows = iter(IterableDataset(DatasetMeta(str(tmp_path / "a.txt"))))
    assert next(rows) == {"text": "ok"}
    with pytest.raises(InvalidError, match=r"a\.txt line 2, byte 1: invalid UTF-8"):
        next(rows)
    (tmp_path / "b.txt").write_bytes("\ufeffone\r\ntwo\n\nfour".encode())
    assert [row["text"] for row in dataset(tmp_path / "b.txt")] == ["one", "two", "", "four"]
    with pytest.raises(NotFoundError, match="neither a file here nor an id"):
        dataset(str(tmp_path / "none.parquet"))


def test_a_missing_package_is_named_with_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "lance", None)
    for name, wanted in (("a.parquet", "pyarrow"), ("b.lance", "pylance")):
        (tmp_path / name).touch()
        with pytest.raises(NotAvailableError, match=f"pip install {re.escape(wanted)}"):
            dataset(tmp_path / name)
    rows = dataset(numbers(2))
    with pytest.raises(NotAvailableError, match="needs the package pyarrow"):
        rows.save_as(tmp_path / "c.parquet")
    with pytest.raises(NotAvailableError, match="needs the package pyarrow"):
        rows.save_as(tmp_path / "c.parquet", mode="training")
    assert not list(tmp_path.glob("*c.parquet*"))


def test_a_lance_table_is_a_directory(arrow, tmp_path, monkeypatch):
    class Lance:
        @staticmethod
        def dataset(path):
            assert path == str(tmp_path / "a.lance")
            return Lance

        @staticmethod
        def to_table():
            return arrow.Table.from_pylist(ROWS)

    monkeypatch.setitem(sys.modules, "lance", Lance)
    (tmp_path / "b.lance").touch()
    with pytest.raises(
        InvalidError, match=r"b\.lance is one file of a Lance data set: name the fol"
    ):
        dataset(tmp_path / "b.lance")
    (tmp_path / "a.lance").mkdir()
    assert list(dataset(tmp_path / "a.lance")) == ROWS


def test_parquet_is_written_whole_with_the_fields_of_all_rows(arrow, tmp_path):
    import pyarrow.parquet

    rows = [*ROWS, {"i": 3, "new": "n"}]
    file = tmp_path / "sub" / "a.parquet"
    dataset(rows).save_as(file, batch_size=2)
    names = ("i", "s", "l", "d", "new")
    assert pyarrow.parquet.read_table(file).to_pylist() == [
        {name: row.get(name) for name in names} for row in rows
    ]
    assert pyarrow.parquet.ParquetFile(file).num_row_groups == 2
    talks = [{"messages": conversation(answer)["messages"]} for answer in ("Nova", "Me")]
    dataset(talks).save_as(tmp_path / "t", format="parquet")
    assert (
        pyarrow.parquet.read_table(tmp_path / "t").to_pylist()[1]["messages"]
        == (talks[1]["messages"])
    )
    before = file.read_bytes()
    with pytest.raises(InvalidError, match=r"column 'x' has no single type.*save as jsonl"):
        dataset([{"x": 1}, {"x": "a"}]).save_as(file)
    with pytest.raises(InvalidError, match="rows without fields cannot be Parquet"):
        dataset([{}]).save_as(file)
    assert file.read_bytes() == before and len(list(file.parent.iterdir())) == 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.parquet"])
def test_rows_are_saved_as_a_run_reads_them(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    rows = dataset([{"i": i, "t": f"ä{i}"} for i in range(10)])
    rows.flush_save()  # nothing to do
    file = tmp_path / "sub" / name
    rows.save_as(file, mode="training", batch_size=3)
    with pytest.raises(InvalidError, match=r"call flush_save\(\) first"):
        rows.save_as(tmp_path / "b.jsonl", mode="training")
    seen = [row for batch in DataLoader(rows, batch_size=4, shuffle=True) for row in batch]
    assert rows[-1] == {"i": 9, "t": "ä9"} and rows[:2]["i"] == [0, 1]
    seen += [rows[i] for i in ()] + [{"i": i, "t": f"ä{i}"} for i in (9, 0, 1)]
    assert rows["i"] == list(range(10))  # a column is no reading of rows
    assert not file.exists()
    partial = file.with_name(name + ".partial.jsonl")
    assert len(partial.read_text().splitlines()) == 12  # 13 rows, in batches of 3
    rows.flush_save()
    assert list(dataset(file)) == seen and list(file.parent.iterdir()) == [file]
    assert rows[0] == {"i": 0, "t": "ä0"} and list(dataset(file)) == seen


def test_wrong_formats_and_modes_are_named(tmp_path):
    rows = dataset(numbers(1))
    for arguments, text in (
        ({"format": "xml"}, "format is 'xml', it must be 'jsonl', 'json', 'csv' or 'parquet'"),
        ({"mode": "later"}, "mode is 'later', it must be 'immediate' or 'training'"),
    ):
        with pytest.raises(InvalidError, match=text):
            rows.save_as(tmp_path / "a.jsonl", **arguments)
    with pytest.raises(InvalidError, match=r"a\.xml: format is 'xml', it must be 'jsonl',"):
        rows.save_as(tmp_path / "a.xml", mode="training")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["immediate", "training"])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path, suffix, mode):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "file").write_text("x")
    (tmp_path / f"folder.{suffix}").mkdir()
    rows = dataset(numbers(1))
    for path, text in (
        (tmp_path / "file" / f"a.{suffix}", "where no file can be written .Not a directory.: name"),
        (tmp_path / "file" / "b" / f"a.{suffix}", "where no file can be written .Not a directory"),
        (tmp_path / f"folder.{suffix}", "a folder: name a file in it"),
        (Path(f"/proc/a.{suffix}"), "where no file can be written .No such file"),
        (f"a\0b.{suffix}", "x00b.*', it must be a path"),
    ):
        with pytest.raises(InvalidError, match=f"path is .*{text}"):
            rows.save_as(path, mode=mode)
    assert {p.name for p in tmp_path.iterdir()} == {"file", f"folder.{suffix}"}
    rows.save_as(tmp_path / f"a.{suffix}", mode=mode)  # nothing of those was begun
    assert list(rows) == numbers(1)
    rows.flush_save()
    assert (tmp_path / f"a.{suffix}").is_file()


def test_a_path_of_a_listing_is_its_path(tmp_path):
    (tmp_path / "a.jsonl").touch()
    with os.scandir(tmp_path) as entries:
        dataset(numbers(1)).save_as(next(entries))
    assert list(dataset(tmp_path / "a.jsonl")) == numbers(1)


def test_images_that_stay_as_they_are_need_no_casting(tmp_path):
    rows = dataset([{"image": "a.png"}, {"i": 1}])
    rows.cast_column("image", decode=False)
    assert rows[0] == {"image": "a.png"}
    with pytest.raises(InvalidError, match="no row has a field 'photo'"):
        rows.cast_column("photo", decode=False)
    with pytest.raises(NotAvailableError, match="is for image columns, which this version does no"):
        rows.cast_column("image")
    assert json.loads(json.dumps(rows[1])) == {"i": 1}
