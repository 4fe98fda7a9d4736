"""bench/: the order in which samples are taken, and rows from samples that are known."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bench.own_worker import OwnWorker

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import decoding  # noqa: E402
import foreign  # noqa: E402
import limits  # noqa: E402
import rows  # noqa: E402
import run as program  # noqa: E402
import saving  # noqa: E402
import training  # noqa: E402
import verdict  # noqa: E402
import worker as processes  # noqa: E402

SHAPE = limits.Shape(hidden=8, inner=16, kv_width=4, layers=2, vocab=32)
BATCH = {"ids": [[1] * 6, [2] * 4], "labels": [[-100, 1, 1, 1, 1, -100], [1, 1, 1, -100]]}
NAMES = {"system_peft": "transformers 5 + peft 1", "system_llama": "llama.cpp (x)"}


class Run:
    """The part of bench/run.py's Run that a question needs."""

    model, threads, shape = "a model", 2, SHAPE
    machine = limits.Machine(gemm_gflops=1e-4, read_gb_s=1e-5, note="fast")
    rounds, attempts, num_tokens = 3, 4, 5
    device, options, kept, patience, beside_llama = "cpu", {}, None, foreign.PATIENCE, True

    inputs = SimpleNamespace(prompts=lambda count: [[7, 8]] * count)

    def progress(self, _):
        return lambda _: None

    def machine_fields(self):
        return {"cpu": "a CPU", "threads": self.threads, "machine": self.machine.note}


@pytest.fixture
def asked(monkeypatch):
    """Workers that answer from `answers`, {(system, call): answers in their order}; `calls` holds
    what they were asked: (system, call, arguments)."""
    asked = SimpleNamespace(answers={}, calls=[])

    class Worker:
        def __init__(self, system, threads):
            self.system = system
            assert threads == Run.threads

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def ask(self, call, **arguments):
            asked.calls.append((self.system, call, arguments))
            if call == "name":
                return NAMES[self.system]
            waiting = asked.answers.get((self.system, call))
            return dict(waiting.pop(0)) if waiting is not None else None

    monkeypatch.setattr(processes, "Worker", Worker)
    monkeypatch.setattr(decoding, "Worker", Worker)
    monkeypatch.setattr(decoding, "has_llama", lambda: True)
    monkeypatch.setattr(decoding, "start_llama", lambda worker: worker.ask("load"))
    return asked


def samples(name, times, values, foreign=None):
    foreign = foreign or [0.0] * len(times)
    return [
        {"wall_s": wall, name: value, "foreign": load}
        for wall, value, load in zip(times, values, foreign, strict=True)
    ]


# A sample that warms up, then rounds, of which the second meets foreign load and is taken again.
LOADS = [0.0, 0.0, 0.9, 0.0, 0.0]


def test_training_takes_ours_and_the_peers_samples_in_turn_and_makes_a_row_of_them(asked):
    asked.answers = {
        ("system_twinkle", "train"): samples("loss", [9, 1, 5, 4, 2], [3.0, 2.0, 1.5, 1.0, 1.0]),
        ("system_peft", "train"): samples(
            "loss", [9, 10, 5, 40, 20], [3.0, 2.0, 1.5, 1.0, 0.999], LOADS
        ),
    }
    made = training.speed(Run(), training.C1, [BATCH] * 5)
    trained = [system for system, call, _ in asked.calls if call == "train"]
    assert trained == ["system_twinkle", "system_peft"] * 5
    loaded = [system for system, call, _ in asked.calls if call == "load"]
    assert loaded == ["system_twinkle", "system_peft"]
    # 10 tokens in 1, 4 and 2 s beside 10, 40 and 20 s.
    assert made["samples"] == {"ours": [10, 2.5, 5], "peer": [1, 0.25, 0.5]}
    assert (made["ours"], made["peer"], made["ratio"]) == (5, 0.5, 10)
    gflop = limits.training_gflop(SHAPE, training.RANK, [6, 4], 7)
    assert made["limit"] == pytest.approx(10 * 1e-4 / gflop, abs=0.01)
    assert made["share_of_limit"] == pytest.approx(5 / made["limit"], abs=1e-3)
    assert (made["id"], made["floor"], made["goal"]) == ("C1", 1.6, 2.0)
    assert made["peer_name"] == NAMES["system_peft"]
    assert (made["noisy"], made["valid"], made["foreign"]) == (False, True, [0, 0, 0])
    assert made["losses"]["peer"] == [3.0, 2.0, 1.5, 1.0, 0.999]
    assert made["notes"] == ["5 losses differ by at most 1.0e-03 (relative)"]


def test_both_train_the_same_batch_in_a_round_and_another_one_in_the_next(asked):
    for system in ("system_twinkle", "system_peft"):
        asked.answers[system, "train"] = samples("loss", [1] * 4, [1.0] * 4)
    batches = [{"ids": [[number] * 2], "labels": [[number, -100]]} for number in range(5)]
    training.speed(Run(), training.C1, batches)
    numbers = [what["ids"][0][0] for _, call, what in asked.calls if call == "train"]
    assert numbers == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_row_of_losses_that_differ_is_not_valid(asked):
    asked.answers = {
        ("system_twinkle", "train"): samples("loss", [1] * 4, [1.0, 1.0, 1.0, 1.03]),
        ("system_peft", "train"): samples("loss", [1] * 4, [1.0] * 4),
    }
    assert not training.speed(Run(), training.C1, [BATCH] * 5)["valid"]


def test_decoding_takes_every_systems_samples_in_turn_and_makes_a_row_for_each_peer(asked):
    systems = ["system_twinkle", "system_peft", "system_llama"]
    replies = {"system_twinkle": [1, 2, 3, 4], "system_peft": [1, 2, 3, 4]}
    times = {"system_twinkle": [9, 1, 5, 4, 2], "system_peft": [9, 10, 5, 40, 20]}
    for system in systems:
        asked.answers[system, "decode"] = samples(
            "tokens",
            times.get(system, [9, 2, 5, 8, 4]),
            [[replies.get(system, [1, 9, 3, 4])]] * 5,
            LOADS if system == "system_llama" else None,
        )
    llama, peft = decoding.c7(Run())
    decoded = [(system, what) for system, call, what in asked.calls if call == "decode"]
    assert [system for system, _ in decoded] == systems * 5
    assert all(what == {"prompts": [[7, 8]], "num_tokens": 5} for _, what in decoded)
    # 5 tokens in 1, 4 and 2 s; the round that a load of 0.9 cores met is of nobody.
    assert llama["samples"] == {"ours": [5, 1.25, 2.5], "peer": [2.5, 0.62, 1.25]}
    assert peft["samples"] == {"ours": [5, 1.25, 2.5], "peer": [0.5, 0.12, 0.25]}
    assert (llama["ratio"], peft["ratio"]) == (2.0, 10.0)
    assert (llama["peer_name"], peft["peer_name"]) == ("llama.cpp (x)", "transformers 5")
    assert (llama["floor"], llama["goal"], peft["floor"], peft["goal"]) == (1.0, 1.05, 1.0, 3.9)
    assert llama["limit"] == round(limits.decoding_tokens_s(SHAPE, Run.machine, 1), 2)
    assert llama["notes"] == ["25% of the greedy tokens come before the first difference"]
    assert peft["notes"] == ["100% of the greedy tokens come before the first difference"]
    assert {row["id"] for row in (llama, peft)} == {"C7"} and not llama["noisy"]


@pytest.mark.soak
def test_a_quick_run_measures_training_and_decoding_beside_the_peers(
    tmp_path, monkeypatch, capsys, smollm2_dir, data_dir
):
    monkeypatch.setattr(program, "ROOT", tmp_path)
    arguments = ["--quick", "--only", "C1,C7", "--model", smollm2_dir]
    assert program.main(arguments) == 0
    assert "bf16 products" in capsys.readouterr().out
    found = json.loads((tmp_path / "outputs/bench/cpu.json").read_text())
    peers = ["llama.cpp"] * decoding.has_llama() + ["transformers"]
    assert [row["id"] for row in found] == ["C1", *(["C7"] * len(peers))]
    assert [row["peer_name"].split()[0] for row in found] == ["transformers", *peers]
    for row in found:
        assert row["valid"] and row["unit"] == "tokens/s"
        assert len(row["samples"]["ours"]) == len(row["samples"]["peer"]) == 2
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"], abs=2e-3)
        assert 0 < row["share_of_limit"] < 1.5
    assert len(found[0]["losses"]["ours"]) == len(found[0]["losses"]["peer"]) >= 3


class QuickRun(Run):
    """On one thread; a test says of which model."""

    rounds, threads = 2, 1


def test_a_save_is_measured_beside_a_copy_and_a_file_of_as_many_bytes(monkeypatch, tiny_llama_dir):
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    monkeypatch.setattr(saving, "Worker", OwnWorker)
    monkeypatch.setattr(QuickRun, "model", str(tiny_llama_dir))
    targets, copyto = [], np.copyto
    monkeypatch.setattr(np, "copyto", lambda to, of: (targets.append(to), copyto(to, of)))
    stall, durable = saving.k2(QuickRun())
    assert len(targets) == 7, "one a save, and one that warms up"
    assert all(target is targets[0] for target in targets), "memory that is kept between saves"
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
