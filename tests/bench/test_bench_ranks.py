"""bench/: D1, D3 to D6 and R4, which measure several processes that are one engine. Rows of samples
that are known, and small runs on a tiny model."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench.own_worker import OwnWorker

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import foreign  # noqa: E402
import limits  # noqa: E402
import ranks  # noqa: E402
import syncing  # noqa: E402
import traffic  # noqa: E402
import training  # noqa: E402
import verdict  # noqa: E402
import worker as processes  # noqa: E402

BATCH = {"ids": [[5, 6, 7], [8, 9, 5]], "labels": [[6, 7, -100], [9, 5, -100]]}  # 6 tokens each


class Run:
    """The part of bench/run.py's Run that a question needs. 8 threads: no worker has so many."""

    model, threads, options = "a model", 8, {}
    rounds, attempts, num_tokens, patience = 3, 4, 5, foreign.PATIENCE
    shape = limits.Shape(hidden=8, inner=16, kv_width=4, layers=2, vocab=32)
    machine = limits.Machine(gemm_gflops=1e-4, read_gb_s=1e-5, note="fast")
    inputs = SimpleNamespace(
        prompts=lambda count: [[7, 8]] * count, full_batches=lambda count, *_: [BATCH] * count
    )

    def progress(self, _):
        return lambda _: None

    def machine_fields(self):
        return {"cpu": "a CPU", "threads": self.threads, "machine": self.machine.note}


@pytest.fixture
def said(monkeypatch):
    """Workers that answer from `answers`, {(system, which of them, call): answers in their order};
    `calls` holds what they were asked: (system, call, arguments)."""
    said = SimpleNamespace(answers={}, calls=[], made=[])

    class Worker:
        def __init__(self, system, threads):
            self.which = system, sum(name == system for name, _ in said.made)
            said.made.append((system, threads))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        close_input = kill = __exit__

        def begin(self, call, **arguments):
            said.calls.append((self.which[0], call, arguments))

        def answer(self, call):
            waiting = said.answers.get((*self.which, call))
            return waiting.pop(0) if waiting is not None else {}

        def ask(self, call, **arguments):
            self.begin(call, **arguments)
            return self.answer(call)

    for module in (ranks, syncing):
        monkeypatch.setattr(module, "Worker", Worker)
    return said


ONE, RANKS = "system_twinkle", "system_twinkle_ranks"
OURS, PEERS = [9, 2, 4, 1], [9, 3, 1, 2]  # seconds; the first ones warm up
LOSSES = [3.0, 2.0, 1.5, 1.0]


def answers_of(call, **more):
    """Numbers of each worker. The second rank works all the time, which the first one takes for
    foreign."""

    def of(times, foreign=0.0):
        rest = [{name: values[i] for name, values in more.items()} for i in range(len(times))]
        pairs = zip(times, rest, strict=True)
        return [{"wall_s": t, "used_s": t, "foreign": foreign} | own for t, own in pairs]

    return {(RANKS, 0, call): of(OURS, 1.01), (RANKS, 1, call): of(OURS), (ONE, 0, call): of(PEERS)}


def test_training_by_two_processes_is_tokens_a_second_of_all_ranks_beside_one_process(said):
    said.answers = answers_of("train", loss=LOSSES)
    (row,) = ranks.d4(Run())
    assert sorted(said.made) == [(ONE, Run.threads), (RANKS, 1), (RANKS, 1)]
    assert row["samples"] == {"ours": [3, 1.5, 6], "peer": [2, 6, 3]}  # 6 tokens
    assert (row["ours"], row["peer"], row["ratio"]) == (3, 3, 1)
    gflop = limits.training_gflop(Run.shape, training.RANK, [3, 3], 4)
    assert row["limit"] == pytest.approx(6 * 1e-4 / gflop, abs=0.01)
    assert (row["id"], row["unit"], row["floor"], row["goal"]) == ("D4", "tokens/s", 0.85, 0.95)
    assert (row["valid"], row["noisy"], row["foreign"]) == (True, False, [0.01] * 3)
    assert row["notes"] == ["4 losses have the same bits"]
    trained = [(system, what) for system, call, what in said.calls if call == "train"]
    assert trained == [(s, BATCH | {"lr": 1e-3, "repeats": 1}) for s in (RANKS, RANKS, ONE)] * 4
    begun = [what for _, call, what in said.calls if call == "start_training"]
    assert [what["make"] for what in begun] == [True, False, False], "all have one's adapter"
    assert len({what["adapter"] for what in begun}) == 1


def test_training_by_two_processes_with_a_bit_of_a_loss_that_differs_does_not_count(said):
    said.answers = answers_of("train", loss=LOSSES)
    said.answers[ONE, 0, "train"][3]["loss"] = math.nextafter(1.0, 2.0)
    (row,) = ranks.d4(Run())
    assert not row["valid"]


def test_what_a_group_costs_is_milliseconds_of_an_operation_and_of_a_token(said):
    said.answers = answers_of("null_operations", each_s=[[t, 1e-3 * t, 0] for t in (1, 2, 3, 4)])
    for answer in said.answers[ONE, 0, "null_operations"]:
        answer["each_s"] = [1e-3, 2e-3, 9.0]  # the median is a call's
    said.answers |= answers_of("decode")
    nothing, token = ranks.d5(Run())
    assert sorted(said.made) == [(ONE, 1), (RANKS, 1), (RANKS, 1)]
    assert nothing["samples"] == {"ours": [2, 3, 4], "peer": [2, 2, 2]}
    assert (nothing["ratio"], nothing["limit"]) == (0.667, 2)
    assert token["samples"] == {"ours": [400, 800, 200], "peer": [600, 200, 400]}  # 5 tokens
    assert (token["ours"], token["ratio"], token["limit"]) == (400, 1, 200)
    decoded = [what for _, call, what in said.calls if call == "decode"]
    assert decoded == [{"prompts": [[7, 8]], "num_tokens": 5}] * 12
    for row in (nothing, token):
        assert (row["id"], row["unit"], row["valid"]) == ("D5", "ms", True)
        assert (row["floor"], row["goal"], row["foreign"]) == (None, None, [0.01] * 3)


def killed_at(monkeypatch, said, *seconds):
    """Rank 1 of three is killed; the other two have its error so many seconds later."""
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=lambda: 100.0)
    monkeypatch.setattr(ranks, "time", clock)
    gone = "engine: operation 3: mesh: rank 1 has gone: its process has ended"
    for first in range(0, 9, 3):  # for each round's three workers
        for rank, after in zip((0, 2), seconds, strict=True):
            told = {"time": 100.0 + after, "error": gone}
            said.answers[RANKS, first + rank, "train_until_error"] = [told]


def test_a_kill_is_known_when_the_last_rank_has_the_error(said, monkeypatch):
    killed_at(monkeypatch, said, 0.5, 0.8)
    (row,) = ranks.d6(Run())
    assert row["samples"] == {"ours": [0.8] * 3, "peer": [30.0]}
    assert (row["unit"], row["limit"], row["ratio"], row["share_of_limit"]) == ("s", 2, 37.5, 2.5)
    assert (row["id"], row["floor"], row["goal"]) == ("D6", 1.0, 15.0)
    killed_at(monkeypatch, said, 31, 0.1)
    said.made.clear()
    assert [miss.id for miss in verdict.misses(list(ranks.d6(Run())), ["D6"])] == ["D6"]


def test_a_kill_whose_error_names_another_rank_is_no_figure(said, monkeypatch):
    killed_at(monkeypatch, said, 0.5, 0.8)
    said.answers[RANKS, 2, "train_until_error"][0]["error"] = "mesh: rank 0 has gone"
    with pytest.raises(AssertionError, match="rank 0 has gone"):
        list(ranks.d6(Run()))


def test_a_sync_is_as_long_as_the_slower_end_takes_beside_as_many_bytes_raw(said):
    count = 1 + 3 * Run.rounds
    for end, ms, raw in ((0, 4.0, 3.0), (1, 6.0, 2.0)):
        said.answers["system_sync", end, "sync"] = [{"ms": 90.0, "num_bytes": 2_400_000}] + [
            {"ms": ms, "num_bytes": 2_400_000} for _ in range(count - 1)
        ]
        said.answers["system_sync", end, "raw"] = [90.0] + [raw] * (count - 1)
    said.answers["system_sync", 0, "prepare"] = ["127.0.0.1:1"]
    (row,) = syncing.r4(Run())
    assert said.made == [("system_sync", 4)] * 2
    assert row["samples"] == {"ours": [6] * 9, "peer": [3] * 9}
    assert (row["ratio"], row["limit"], row["unit"], row["valid"]) == (0.5, 3, "ms", True)
    assert (row["id"], row["floor"], row["goal"]) == ("R4", 0.5, 0.75)
    assert row["what"].endswith("bf16, 2 MB")
    sent = [what for _, call, what in said.calls if call == "raw"]
    assert sent == [{"num_bytes": 2_400_000}] * 2 * count


# ---- bytes

LINES = [
    {"id": "D3", "gathered": "0", "sent": [30e6, 30e6], "base_bytes": 40e6, "once_bytes": 20e6},
    {"id": "D3", "gathered": "half", "sent": [21e6, 19e6], "base_bytes": 40e6, "once_bytes": 20e6},
    {"id": "D3", "gathered": "all", "sent": [0, 0], "base_bytes": 40e6, "once_bytes": 20e6},
    {"id": "D1", "grads": [50e6, 30e6], "values": [20e6, 20e6], "num_weights": 9,
     "num_parameters": 20e6},
]  # fmt: skip


def traffic_of(monkeypatch, lines):
    monkeypatch.setattr(traffic, "counted", lambda _, id_: [x for x in lines if x["id"] == id_])
    return [*traffic.d1(Run()), *traffic.d3(Run())]


def test_bytes_are_a_ranks_mean_in_mb_beside_the_formulas(monkeypatch):
    found = traffic_of(monkeypatch, LINES)
    # 4 and 2 bytes of half of 20 M; twice half of 40 MB but half of what is used once; half of it.
    assert [row["peer"] for row in found] == [40, 20, 30, 20]
    assert [row["ours"] for row in found] == [40, 20, 30, 20]
    assert all(row["valid"] and row["unit"] == "MB" and row["ratio"] == 1 for row in found)
    assert [(row["id"], row["floor"]) for row in found] == [
        ("D1", 0.999), ("D1", 0.999), ("D3", 0.999), ("D3", 0.95),
    ]  # fmt: skip
    assert verdict.misses(found, ["D1", "D3"]) == []


@pytest.mark.parametrize(
    ("line", "name", "place"), [(3, "grads", 0), (3, "values", 1), (0, "sent", 2), (1, "sent", 3)]
)
@pytest.mark.parametrize("times", [0.9, 1.1])
def test_bytes_that_are_not_the_formulas_do_not_count(line, name, place, times, monkeypatch):
    other = [each | {name: [times * n for n in each[name]]} if i == line else each
             for i, each in enumerate(LINES)]  # fmt: skip
    found = traffic_of(monkeypatch, other)
    assert [row["valid"] for row in found] == [i != place for i in range(4)]
    missed = verdict.misses(found, ["D1", "D3"])
    assert [miss.what for miss in missed] == [found[place]["what"]] * (times > 1)


def test_bytes_with_all_gathered_are_none(monkeypatch):
    with pytest.raises(AssertionError):
        traffic_of(monkeypatch, [LINES[0], LINES[1], LINES[2] | {"sent": [0, 8]}, LINES[3]])


def sizes(model):
    """Elements of each tensor of the model's file."""
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(Path(model) / "model.safetensors", "np") as file:
        names = file.keys()
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    return {name: (math.prod(shape), len(shape)) for name, shape in shapes.items()}


@pytest.fixture
def quick(monkeypatch, tiny_llama_dir):
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    monkeypatch.setattr(Run, "model", tiny_llama_dir)
    for name in ("rounds", "attempts"):
        monkeypatch.setattr(Run, name, 1)
    return Run()


def test_two_ranks_send_the_bytes_of_the_models_own_sizes(quick):
    if not (ROOT / "build/release/traffic_bench").exists():
        pytest.skip("traffic_bench is not built")
    of = sizes(quick.model)
    all_, base = sum(n for n, _ in of.values()), sum(n for n, dims in of.values() if dims == 2)
    once = of["lm_head.weight"][0] + of["model.embed_tokens.weight"][0]
    grads, values = traffic.d1(quick)
    nothing, half = traffic.d3(quick)
    expected = [(4 * all_ + 2 * len(of)) / 2, 2 * all_ / 2, (2 * 2 * base - 2 * once) / 2]
    for row, num_bytes in zip((grads, values, nothing), expected, strict=True):
        assert row["valid"] and row["ours"] == round(num_bytes / 1e6, 2) > 0.1, row
    assert half["ours"] < nothing["ours"] and "with all gathered: 0" in nothing["notes"]


# ---- small runs


@pytest.fixture
def one_here(monkeypatch):
    """The one process is this; ranks are workers."""
    monkeypatch.setattr(
        ranks,
        "Worker",
        lambda system, threads: (OwnWorker if system == ONE else processes.Worker)(system, threads),
    )


def test_two_processes_train_a_tiny_model_with_the_bits_of_one(quick, one_here):
    (row,) = ranks.d4(quick)
    assert row["valid"] and len(row["losses"]["ours"]) == 2 and row["losses"]["ours"][0] > 0
    assert row["ours"] > 0 and row["peer"] > 0 and row["unit"] == "tokens/s"


def test_two_processes_do_nothing_and_decode_the_tokens_of_one(quick, one_here, monkeypatch):
    told = {}

    def noting(ask):
        def asked(self, call, **arguments):
            answer = ask(self, call, **arguments)
            told.setdefault(call, []).append(answer)
            return answer

        return asked

    for asker in (ranks.Ranks, OwnWorker):
        monkeypatch.setattr(asker, "ask", noting(asker.ask))
    monkeypatch.setattr(ranks, "NULL_OPERATIONS", 3)
    found = list(ranks.d5(quick))
    # One round after one that warms up. (Of so few tokens the times may be anything.)
    assert [len(row["samples"][name]) for row in found for name in ("ours", "peer")] == [1] * 4
    assert [len(answer["each_s"]) for answer in told["null_operations"]] == [3] * 4
    tokens = [answer["tokens"] for answer in told["decode"]]
    assert len(tokens[0][0]) == quick.num_tokens + 1 and tokens == [tokens[0]] * 4


def test_a_process_that_is_killed_is_named_to_both_others(quick):
    (row,) = ranks.d6(quick)
    assert len(row["samples"]["ours"]) == 1 and row["ours"] >= 0 and row["unit"] == "s"


def test_all_weights_in_bf16_are_synced_and_sent_raw(quick, monkeypatch):
    asked = []

    class Worker(OwnWorker):
        def ask(self, call, **arguments):
            asked.append((call, arguments))
            return super().ask(call, **arguments)

    monkeypatch.setattr(syncing, "Worker", Worker)
    (row,) = syncing.r4(quick)
    assert len(row["samples"]["ours"]) == len(row["samples"]["peer"]) == 3
    assert min(row["ours"], row["peer"]) > 0
    all_ = sum(n for n, _ in sizes(quick.model).values())
    assert [what for call, what in asked if call == "raw"] == [{"num_bytes": 2 * all_}] * 8
