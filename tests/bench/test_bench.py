"""bench/: arguments, the arithmetic of rows and limits, the noise filter, the pipes. No model."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import contention  # noqa: E402
import decoding  # noqa: E402
import foreign  # noqa: E402
import inputs  # noqa: E402
import limits  # noqa: E402
import rows  # noqa: E402
import run  # noqa: E402
import tenants  # noqa: E402
import together  # noqa: E402
import training  # noqa: E402
import verdict  # noqa: E402
from worker import Worker, WorkerError  # noqa: E402

SMOLLM2 = limits.Shape(hidden=576, inner=1536, kv_width=192, layers=30, vocab=49152)


def row(id_="C1", what="training", lower=False, **more):
    samples = {"ours": [300.0, 100.0, 200.0], "peer": [50.0, 100.0, 90.0]}
    fields = {"unit": "tokens/s", "noisy": False, "valid": True, "notes": []}
    fields |= {"cpu": "a CPU", "threads": 2, "machine": "fast", **more}
    return rows.make_row(id_, what, "peer 1.0", samples, 400.0, lower_is_better=lower, **fields)


def test_arguments_name_questions_and_unknown_ones_are_refused(capsys):
    assert run.parse([]).only == list(rows.NOW)
    arguments = run.parse(["--only", "c1,C3", "--quick", "--threads", "3"])
    assert (arguments.only, arguments.quick, arguments.threads) == (["C1", "C3"], True, 3)
    for wrong, text in ((["--only", "C99"], "'C99'"), (["--rounds", "0"], "at least 1")):
        with pytest.raises(SystemExit):
            run.parse(wrong)
        assert text in capsys.readouterr().err


def test_a_row_is_medians_their_ratio_and_the_share_of_the_limit():
    one = row()
    assert (one["ours"], one["peer"], one["limit"]) == (200, 90, 400)
    assert one["ratio"] == pytest.approx(200 / 90, abs=1e-3)
    assert one["share_of_limit"] == 0.5
    assert one["best"] == {"ours": 300, "peer": 100}


def test_a_resting_tenant_keeps_its_weights_and_two_moments():
    assert tenants.resident_mib(SMOLLM2, 16) == pytest.approx(58.6e6 / 2**20, rel=1e-3)
    assert tenants.resident_mib(SMOLLM2, 8) * 2 == tenants.resident_mib(SMOLLM2, 16)


def test_where_less_is_better_the_ratio_is_turned_round():
    one = row(lower=True)
    assert one["ratio"] == 0.45
    assert one["share_of_limit"] == 2.0
    assert one["best"] == {"ours": 100, "peer": 50}


def test_results_keep_what_this_run_did_not_measure(tmp_path):
    document, results = tmp_path / "d.md", tmp_path / "results/cpu.json"
    document.write_text(f"before\n{rows.BEGIN}\nold\n{rows.END}\nafter\n")
    rows.write([row("C8", "b"), row("C1")], results, document)
    rows.write([row("C1", noisy=True), row("C3", valid=False)], results, document)
    assert [r["id"] for r in json.loads(results.read_text())] == ["C1", "C3", "C8"]
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "**noisy**" in table[2] and "**invalid**" in table[3] and "**" not in table[4]
    absent = [line.split("|")[1].strip() for line in table if "not measured yet" in line]
    assert absent == [i for i in rows.NOW if i not in ("C1", "C3", "C8")] + list(rows.LATER)
    assert list(rows.NOW) == list(run.QUESTIONS)


def test_the_documents_table_is_that_of_the_results():
    document, results = ROOT / "docs/benchmarks.md", ROOT / "bench/results/cpu.json"
    found = json.loads(results.read_text()) if results.exists() else []
    text = document.read_text()
    assert text == rows.between_markers(text, rows.table(found))


def test_the_results_hold_the_floors_and_goals_of_today():
    """Where one was changed: `python bench/rows.py`."""
    results = ROOT / "bench/results/cpu.json"
    found = json.loads(results.read_text()) if results.exists() else []
    assert found == [rows.judged(row) for row in found]


def test_the_table_is_written_again_from_the_results_alone_with_the_floors_of_today(tmp_path):
    results, document = tmp_path / "cpu.json", tmp_path / "d.md"
    document.write_text(f"{rows.BEGIN}\n{rows.END}\n")
    before = row("C7") | {"peer_name": "transformers 5", "floor": 3.9}
    del before["goal"]
    results.write_text(json.dumps([before]))
    (after,) = rows.write([], results, document)
    assert json.loads(results.read_text()) == [after]
    assert after == before | {"floor": 1.0, "goal": 3.9}
    (line,) = [line for line in document.read_text().splitlines() if line.startswith("| C7")]
    assert "| 2.22 | 1.00 | 3.90 | 400.0 |" in line
    texts = results.read_text(), document.read_text()
    rows.write([], results, document)
    assert (results.read_text(), document.read_text()) == texts


@pytest.mark.parametrize(
    ("id_", "what", "unit", "limit", "must"),
    [
        ("S1", "submit to result, p50, a client of plain sockets", "ms", 0.3, "at most 1 ms"),
        ("S2", "healthz, 16 connections", "requests/s", 50_000, "at least 20,000 requests/s"),
        ("C1", "training", "ms", 3, None),
    ],
)
def test_a_limit_that_is_a_goal_is_shown_with_what_must_be(id_, what, unit, limit, must):
    one = row(id_, what) | {"unit": unit, "limit": limit, "peer_name": verdict.STUB}
    one["notes"] = ["the limit is the goal", "load average 1.4"]
    goal = "the limit is the goal" + (f", {must} must be" if must else "")
    assert f"| {goal}; load average 1.4 |" in rows.line(one, [rows.machine_of(one)])


def test_a_document_without_markers_is_refused():
    with pytest.raises(SystemExit, match="lacks the lines"):
        rows.between_markers("text", "table")


def test_busy_time_leaves_out_idle_and_waiting():
    assert foreign.busy_seconds("cpu  1 2 3 1000 2000 4 5 6 7 8\ncpu0") == 21 * foreign.TICK_S


def measured(id_, ratio, peer="transformers 5 + peft 1", what="training", valid=True):
    return {"id": id_, "what": what, "peer_name": peer, "ratio": ratio, "valid": valid}


@pytest.mark.parametrize(
    "row",
    [
        measured("C1", 1.59),
        measured("C3", 1.84, what="LoRA training on GSM8K"),
        measured("C4", 1.99),
        measured("C5", 1.79, what="4 tenants x 2"),
        measured("C5", 1.19, "Twinkle, one tenant after the other", "8 tenants x 64"),
        measured("C6", 0.89, "Twinkle, all of rank 16"),
        measured("C7", 0.99, "llama.cpp (x)"),
        measured("C8", 1.29, "llama.cpp (x)", "decoding, 8 sequences"),
        measured("C8", 1.29, "llama.cpp (x)", "decoding, 32 sequences"),
        measured("C10", 1.09, "llama.cpp (x)"),
        *(measured(id_, 0.99) for id_ in ("C2", "C7", "C8", "C10", "C12", "F1")),
    ],
    ids=lambda row: f"{row['id']} {row['peer_name']} {row['what']}",
)
def test_a_full_run_ends_with_1_and_names_the_row_that_misses_its_floor(row, capsys):
    below = [row]
    reached = [{**row, "ratio": verdict.floor_of(row)}]
    assert [m.ratio for m in verdict.misses(below, [])] == [row["ratio"]]
    assert run.exit_status(below, [], quick=False) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    cells = [row["id"], row["what"], row["peer_name"], f"{row['ratio']:.3f}"]
    assert line == "| " + " | ".join([*cells, f"{verdict.floor_of(row):.2f}"]) + " |"
    assert run.exit_status(reached, [], quick=False) == 0
    assert run.exit_status(below, [], quick=True) == 0


def test_the_first_token_with_new_weights_comes_within_20_ms():
    made = measured("R2", 13.0, "the same engine through a file", "step to first token")
    assert verdict.misses([made | {"share_of_limit": 0.15}], []) == []
    (miss,) = verdict.misses([made | {"share_of_limit": 0.149}], [])
    assert (miss.id, miss.peer, miss.ratio, miss.floor) == ("R2", "the limit", 0.149, 0.15)


def test_what_was_asked_and_not_measured_is_a_miss_and_so_are_losses_that_differ(capsys):
    assert run.exit_status([measured("C1", 2.0)], ["C1", "C7"], quick=False) == 1
    assert "| C7 |  | llama.cpp | not measured | 1.00 |" in capsys.readouterr().out
    for quick in (False, True):
        assert run.exit_status([measured("C1", 2.0, valid=False)], ["C1"], quick) == 1
        assert "C1 training" in capsys.readouterr().out
    assert run.exit_status([measured("C1", 2.0)], ["C1"], quick=False) == 0
    capsys.readouterr()
    assert run.exit_status([], [], quick=False) == run.exit_status([], [], quick=True) == 1
    assert "every floor" not in capsys.readouterr().out


@pytest.mark.parametrize(("ratio", "status"), [(1.61, 0), (1.59, 1)])
def test_the_program_ends_with_the_verdict_on_what_it_measured(
    ratio, status, tmp_path, monkeypatch
):
    made = {**row("C1"), "ratio": ratio, "peer_name": "transformers 5 + peft 1"}
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/benchmarks.md").write_text(f"{rows.BEGIN}\n{rows.END}")

    class NoRun(run.Run):
        machine = type("Machine", (), {"note": ""})

        def __init__(self, arguments, bar):
            pass

    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "Run", NoRun)
    monkeypatch.setitem(run.QUESTIONS, "C1", lambda _: [made])
    assert run.main(["--only", "C1"]) == status
    assert run.main(["--only", "C1", "--quick"]) == 0


def test_rows_that_compare_us_with_ourselves_are_information_unless_a_floor_names_them():
    assert verdict.floor_of(measured("C5", 0.5, together.ONE, "8 tenants x 64")) is None
    assert verdict.floor_of(measured("C5", 0.5, together.SER, "8 tenants x 64")) == 1.2


@pytest.mark.parametrize(
    ("id_", "peer", "what", "floor", "goal"),
    [
        ("C7", "transformers 5", "decoding, bf16, 1 sequence", 1.0, 3.9),
        ("C7", "llama.cpp (x)", "decoding, bf16, 1 sequence", 1.0, 1.05),
        ("C8", "transformers 5", "decoding, bf16, 32 sequences", 1.0, 3.0),
        ("C8", "llama.cpp (x)", "decoding, bf16, 32 sequences", 1.3, 2.0),
        ("C10", "transformers 5", "a prompt of 512 tokens, bf16", 1.0, 1.5),
        ("C5", together.ONE, "8 tenants x 64", None, 0.92),
        ("C5", together.SER, "8 tenants x 64", 1.2, 1.5),
        ("C9", "Twinkle without adapters", "as many adapters of rank 16", 0.62, 0.71),
        ("R2", "the same engine through a file", "step to first token", None, None),
    ],
)
def test_what_a_row_must_reach_and_what_is_wanted_of_it(id_, peer, what, floor, goal):
    made = rows.judged(row(id_, what) | {"peer_name": peer})
    assert (made["floor"], made["goal"]) == (floor, goal)
    shown = run.show(made)
    assert (f"must be {floor}" in shown) == (floor is not None)
    assert (f"wanted {goal}" in shown) == (goal is not None)
    assert verdict.misses([made | {"ratio": 0.0 if floor is None else floor}], []) == []


def test_every_floor_is_of_a_row_that_the_last_results_have_with_that_floor():
    """A question that was never measured has none; the table says so then."""
    results = ROOT / "bench/results/cpu.json"
    found = json.loads(results.read_text())
    table = (ROOT / "docs/benchmarks.md").read_text()
    for aim in verdict.AIMS:
        if aim.floor is not None:
            floors = [row["floor"] for row in found if aim.holds_for(row)]
            absent = f"| {aim.id} | {rows.NOW[aim.id]} | not measured yet" in table
            assert set(floors) == (set() if absent else {aim.floor}), aim


def test_training_of_all_weights_takes_two_more_products_for_each():
    adapter = limits.training_gflop(SMOLLM2, 8, [256] * 4, 1024)
    full = limits.training_gflop(SMOLLM2, None, [256] * 4, 1024)
    products = 2 * 1024 * (SMOLLM2.layer_weights + SMOLLM2.head_weights) / 1e9
    assert full + 6 * 1024 * SMOLLM2.adapter_weights(8) / 1e9 == pytest.approx(adapter + products)


def test_own_work_is_not_foreign(monkeypatch):
    now = iter([(10.0, 1.0), (13.0, 3.0)])
    monkeypatch.setattr(foreign.Meter, "_now", staticmethod(lambda: next(now)))
    clock = iter([0.0, 4.0])
    monkeypatch.setattr(foreign.time, "perf_counter", lambda: next(clock))
    with foreign.Meter() as meter:
        pass
    assert (meter.wall_s, meter.foreign) == (4.0, 0.25)


def rounds_of(loads):
    return lambda i: {"ours": {"foreign": 0.0, "i": i}, "peer": {"foreign": loads[i], "i": i}}


def indices(rounds):
    return [round_["ours"]["i"] for round_ in rounds]


def test_disturbed_rounds_are_dropped_and_taken_again():
    seen = []
    rounds, noisy = foreign.take_rounds(rounds_of([0.01, 0.06, 1, 0.05, 0]), 2, 5, seen.append)
    assert (indices(rounds), noisy, len(seen)) == ([0, 3], False, 4)


def test_systems_take_rounds_in_turn_after_one_that_warms_up():
    settings = {"rounds": 2, "attempts": 3, "progress": lambda _, label: seen.append}
    settings["patience"] = foreign.PATIENCE
    seen, asked = [], []

    def sample_of(system, i):
        asked.append((system, i))
        return {"foreign": 1.0 if i == 2 else 0.0, "wall_s": 2.0 * i or 1.0}

    found = foreign.in_turn(type("Run", (), settings)(), "C7", ("a", "b"), sample_of, 12)
    rounds, rates, noisy = found
    assert asked == [(system, i) for i in range(4) for system in "ab"]
    assert rates == {"a": [6.0, 2.0], "b": [6.0, 2.0]} and not noisy
    assert seen[0] is rounds[0] and seen[2] is rounds[1]


@pytest.mark.parametrize("seconds", [0.0, -0.5, math.nan])
def test_a_sample_that_took_no_time_is_taken_again(seconds):
    settings = {"rounds": 1, "attempts": 2, "patience": foreign.PATIENCE}
    settings["progress"] = lambda *_: lambda *_: None
    walls = {0: 1.0, 1: seconds, 2: 3.0}
    run = type("Run", (), settings)()
    found = foreign.in_turn(run, "C7", ("a",), lambda _, i: {"wall_s": walls[i], "foreign": 0}, 12)
    assert found == ([{"a": {"wall_s": 3.0, "foreign": 0}}], {"a": [4.0]}, False)


def test_when_time_is_up_no_other_round_begins_but_there_is_one(monkeypatch):
    clock = iter([0.0, 3.0, 6.0])
    monkeypatch.setattr(foreign.time, "monotonic", lambda: next(clock))
    patience = foreign.Patience(limit_cores=0.5, seconds=5)
    take = rounds_of([0.4, 0.6, 0, 0])
    assert indices(foreign.take_rounds(take, 3, 9, patience=patience)[0]) == [0, 1]
    monkeypatch.setattr(foreign.time, "monotonic", iter([0.0, 9.0, 9.0]).__next__)
    rounds, noisy = foreign.take_rounds(take, 3, 9, patience=patience)
    assert (indices(rounds), noisy) == ([0], True)


def test_too_few_clean_rounds_are_called_noisy_and_the_least_disturbed_are_kept():
    rounds, noisy = foreign.take_rounds(rounds_of([0.5, 0.9, 0.01, 0.2]), 2, 4)
    assert (indices(rounds), noisy) == ([2, 3], True)


def test_the_formulas_give_the_known_figures_of_the_model():
    assert SMOLLM2.bytes == pytest.approx(269e6, rel=1e-3)
    assert SMOLLM2.adapter_weights(8) == 2_442_240
    gflop = limits.training_gflop(SMOLLM2, 8, [256] * 4, 1024) / 1024
    assert gflop == pytest.approx(0.580, rel=2e-3)
    machine = limits.Machine(gemm_gflops=462, read_gb_s=30, note="")
    one, many = (limits.decoding_tokens_s(SMOLLM2, machine, n) for n in (1, 32))
    assert one == pytest.approx(111.5, rel=2e-3)
    assert many == pytest.approx(1717, rel=2e-3)


def test_the_limit_counts_the_tokens_and_scored_labels_of_the_batches():
    batch = {"ids": [[1] * 5, [2] * 3], "labels": [[-100] * 3 + [4, -100], [1, 1, -100]]}
    assert (training.num_tokens(batch), training.num_scored(batch)) == (8, 3)


def test_tenants_take_batches_in_turn_and_one_tenant_can_take_them_all():
    batches = [{"ids": [[i, i]], "labels": [[i, -100]]} for i in range(5)]
    steps = together.dealt(batches, ["a", "b"])
    assert steps == [{"a": batches[0], "b": batches[1]}, {"a": batches[2], "b": batches[3]}]
    assert together.merged(steps[1]) == {
        "all": {"ids": [[2, 2], [3, 3]], "labels": [[2, -100], [3, -100]]}
    }
    assert list(together.renamed(steps[0], "x-")) == ["x-a", "x-b"]
    assert together.tokens_of(steps) == 8


def test_mixed_ranks_cost_what_rank_16_costs():
    work = sum(rank * count for rank, count in together.MIXED.items())
    assert work == 16 * sum(together.MIXED.values())


def test_the_thief_works_and_its_load_is_not_foreign(monkeypatch):
    with contention.Thief() as thief:
        before = thief.seconds()
        last = time.monotonic() + 60  # a core may be long in coming
        while thief.seconds() == before and time.monotonic() < last:
            time.sleep(0.01)
        assert thief.seconds() > before
    now = iter([1.0, 3.0])
    monkeypatch.setattr(contention.Thief, "seconds", lambda _: next(now))
    monkeypatch.setattr(contention, "step", lambda *_: {"wall_s": 2.0, "foreign": 1.03})
    assert contention.disturbed(None, None) == {"wall_s": 2.0, "foreign": pytest.approx(0.03)}


def test_curves_and_replies_are_compared():
    assert training.differences([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert decoding.agreement([[1, 2, 3, 4], [5, 6]], [[1, 2, 9, 4], [5, 6]]) == 0.75


def test_missing_data_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("TWINKLE_TEST_DATA", raising=False)
    with pytest.raises(SystemExit, match="TWINKLE_TEST_DATA is not set"):
        inputs.rows(1)
    monkeypatch.setenv("TWINKLE_TEST_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"gsm8k_train\.jsonl is missing"):
        inputs.rows(1)


def test_a_worker_answers_and_its_errors_come_back(tmp_path, monkeypatch):
    (tmp_path / "system_echo.py").write_text(
        "class System:\n"
        "    def echo(self, text):\n"
        "        print('noise')\n"
        "        return text\n"
        "    def fail(self):\n"
        "        raise ValueError('no such thing')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Worker("system_echo", threads=1) as worker:
        assert worker.ask("echo", text="a\nb") == "a\nb"
        with pytest.raises(WorkerError, match="system_echo: fail: ValueError: no such thing"):
            worker.ask("fail")
    with Worker("system_missing", threads=1) as worker, pytest.raises(WorkerError, match="ended"):
        worker.ask("echo", text="a")


def test_the_cost_of_exactness_is_measured_on_any_model(tiny_llama_dir):
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    command = [sys.executable, ROOT / "bench/exactness.py", "--quick", tiny_llama_dir]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    for work in ("training, 2 x 32 tokens: ", "decoding, 1 sequences: ", "decoding, 2 sequences: "):
        assert work in result.stdout
