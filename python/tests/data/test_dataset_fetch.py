"""Data sets for the command line: ids, aliases, folders and tables to a file that C++ reads."""

import json

import pytest
from data_rows import numbers

from twinkle import hub
from twinkle.dataset import fetch

pytestmark = pytest.mark.usefixtures("data_built")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/twinkle/data"


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_alias_of_a_file_of_rows_is_that_file(tmp_path, monkeypatch, cache):
    (tmp_path / "a.CSV").write_text("i\n0\n")
    monkeypatch.setenv("TWINKLE_DATASET_ID_ALIASES", f"owner/name={tmp_path / 'a.CSV'}")
    assert fetch.get("ms://owner/name") == tmp_path / "a.CSV"
    assert not cache.exists()


def test_a_folder_and_a_hubs_rows_become_one_file_of_lines(tmp_path, monkeypatch, cache):
    folder = tmp_path / "rows"
    folder.mkdir()
    for i in range(2):
        (folder / f"{i}.jsonl").write_text(json.dumps({"i": i}) + "\n")
    assert rows_of(fetch.get(str(folder))) == numbers(2)
    monkeypatch.setattr(hub.HubOperation, "load_dataset", lambda *names, **options: numbers(3))
    path = fetch.get("hf://owner/name")
    assert path.parent == cache
    assert rows_of(path) == numbers(3)
    assert path != fetch.get("hf://owner_name/x"), "another id has another file"


def test_the_path_alone_is_printed_and_errors_too_where_they_are_asked_for(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert hub.main(["get", str(tmp_path / "a.jsonl")], find=fetch.get) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'a.jsonl'}\n", "")
    assert hub.main(["get", "--errors-on-stdout", "nothing"], find=fetch.get) == 1
    assert capsys.readouterr().out == (
        "dataset: 'nothing' is neither a file here nor an id of the form owner/name\n"
    )
