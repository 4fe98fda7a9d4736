"""bench/calls.py: D7, on a tiny model."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import calls  # noqa: E402
import limits  # noqa: E402
import verdict  # noqa: E402


def test_without_the_package_d7_is_skipped_by_name(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert list(calls.d7(None)) == []
    assert "D7 is skipped: infra: mode 'ray' with several ranks needs the package ray" in (
        capsys.readouterr().out
    )
    assert verdict.misses([], ["D7"]) == []


def test_d7_measures_calls_results_and_a_batch_whose_losses_are_those_in_process(
    tiny_llama_dir, monkeypatch
):
    pytest.importorskip("ray")
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    # As of conftest.py's clusters: otherwise its workers wait for all else on a busy machine.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
    monkeypatch.setattr(calls, "CALLS", 3)
    monkeypatch.setattr(calls, "HANDED_OVER", 2)
    batch = {"ids": [[5, 6, 7], [8, 9, 5]], "labels": [[6, 7, -100], [9, 5, -100]]}

    class Run:
        model, threads, rounds = tiny_llama_dir, 1, 2
        inputs = type("Inputs", (), {"full_batches": lambda _, count, *__: [batch] * count})()

        def progress(self, name):
            assert name == "D7"
            return lambda _: None

        def machine_fields(self):
            return {"cpu": "a", "threads": 1, "machine": limits.Machine(1, 1, "").note}

    rows = list(calls.d7(Run()))
    assert [row["peer_name"] for row in rows] == [verdict.BARE_ACTOR] * 2 + [verdict.IN_PROCESS]
    assert all(row["valid"] and len(row["samples"]["ours"]) == 2 for row in rows)
    assert "3 losses have the same bits" in rows[2]["notes"]
