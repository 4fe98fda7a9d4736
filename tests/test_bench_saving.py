"""K2: its figures on a tiny model, its floor and its goals."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import rows  # noqa: E402
import saving  # noqa: E402
import verdict  # noqa: E402


class QuickRun:
    rounds, threads, model = 2, 1, None

    def progress(self, label):
        return lambda round_: None

    def machine_fields(self):
        return {"cpu": "a CPU", "threads": 1, "machine": "fast"}


class Worker:
    """In this process."""

    def __init__(self, name, threads):
        self.system = __import__(name).System()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        del self.system

    def ask(self, name, **arguments):
        return getattr(self.system, name)(**arguments)


def test_a_save_is_measured_beside_a_copy_and_a_file_of_as_many_bytes(monkeypatch, tiny_llama_dir):
    monkeypatch.setattr(saving, "Worker", Worker)
    monkeypatch.setattr(QuickRun, "model", str(tiny_llama_dir))
    stall, durable = saving.k2(QuickRun())
    assert [row["unit"] for row in (stall, durable)] == ["ms", "ms"]
    for row in (stall, durable):
        assert len(row["samples"]["ours"]) == len(row["samples"]["peer"]) == 6
        assert row["peer"] >= 0
    assert durable["ours"] > 0 and durable["limit"] == durable["best"]["peer"]


@pytest.mark.parametrize(("ours", "missed"), [(9.9, []), (10.1, ["K2"])])
def test_a_stall_of_ten_milliseconds_is_the_most(ours, missed):
    samples = {"ours": [ours], "peer": [4.0]}
    more = {"unit": "ms", "noisy": False, "valid": True, "notes": []}
    row = rows.make_row(
        "K2", "stall of others", verdict.MEMCPY, samples, saving.GOAL_MS,
        lower_is_better=True, **more,
    )  # fmt: skip
    assert [miss.id for miss in verdict.misses([row], [])] == missed
    row = rows.make_row(
        "K2", "until a save is durable", verdict.DISK, samples, 4.0, lower_is_better=True, **more
    )
    assert row["goal"] == 1 / 1.1 and verdict.misses([row], []) == []
