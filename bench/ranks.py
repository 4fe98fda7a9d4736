"""D4 to D6: several processes that are one engine, beside one process."""

import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import training
from foreign import warmed_rounds
from rows import make_row
from verdict import IN_CI, ONE_PROCESS
from worker import Worker

GOAL_S, FLOOR_S = 2.0, 30.0  # for D6
NULL_OPERATIONS = 400


class Ranks:
    """Workers that are the ranks of one engine, each with one thread. Use as a context manager."""

    def __init__(self, run, size):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.workers = [Worker("system_twinkle_ranks", 1) for _ in range(size)]
        of_load = {"model": run.model, "options": run.options}
        self._each("load_rank", [{"rank": r, "size": size, "port": port} for r in range(size)],
                   of_load)  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers:  # all hear of the end before one is waited for
            worker.close_input()
        for worker in self.workers:
            worker.__exit__()

    def ask(self, call, **arguments):
        """The report of the first one; the load of the others is not foreign to it."""
        first, *others = self._each(call, [{}] * len(self.workers), arguments)
        if first and "used_s" in first:
            known = sum(other["used_s"] for other in others) / first["wall_s"]
            first["foreign"] = max(0.0, first["foreign"] - known)
        return first

    def _each(self, call, own, common):
        for worker, arguments in zip(self.workers, own, strict=True):
            worker.begin(call, **arguments, **common)
        return [worker.answer(call) for worker in self.workers]


def d4(run):
    batches = run.inputs.full_batches(run.attempts + 1, training.SIZE, training.LENGTH)
    curves = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        one = stack.enter_context(Worker("system_twinkle", run.threads))
        one.ask("load", model=run.model, options=run.options)
        asked = {"ours": stack.enter_context(Ranks(run, 2)), "peer": one}
        adapter = str(Path(folder) / "adapter")
        one.ask("start_training", adapter=adapter, rank=training.RANK, make=True)
        asked["ours"].ask("start_training", adapter=adapter, rank=training.RANK, make=False)

        def take(index):
            round_ = {name: training.step(w, batches[index]) for name, w in asked.items()}
            for name, sample in round_.items():
                curves[name].append(sample["loss"])
                sample["rate"] = training.num_tokens(batches[index]) / sample["wall_s"]
            return round_

        rounds, noisy = warmed_rounds(run, "D4", take)
    yield make_row(
        "D4", f"C1's workload on two processes of one thread each, next to {run.threads} threads",
        ONE_PROCESS, {name: [r[name]["rate"] for r in rounds] for name in asked},
        training.limit_tokens_s(run, batches), unit="tokens/s", noisy=noisy,
        valid=curves["ours"] == curves["peer"],
        notes=[f"{len(curves['ours'])} losses have the same bits"], losses=curves,
        foreign=training.foreign_of(rounds), **run.machine_fields(),
    )  # fmt: skip


def d5(run):
    """One thread in each process: what differs is that there are two."""
    prompt = [run.inputs.prompts(1)[0]]
    with ExitStack() as stack:
        one = stack.enter_context(Worker("system_twinkle", 1))
        one.ask("load", model=run.model, options=run.options)
        asked = {"ours": stack.enter_context(Ranks(run, 2)), "peer": one}
        for worker in asked.values():
            worker.ask("start_as_service", rank=training.RANK, seed=7)
            worker.ask("start_decoding", num_sequences=1)

        def nothing(_):
            round_ = {n: w.ask("null_operations", count=NULL_OPERATIONS) for n, w in asked.items()}
            for sample in round_.values():
                sample["ms"] = 1e3 * statistics.median(sample["each_s"])
            return round_

        def token(_):
            count = run.num_tokens
            round_ = {
                "ours": asked["ours"].ask("decode", prompts=prompt, num_tokens=count),
                "peer": one.ask("decode", prompts=prompt, num_tokens=count),
            }
            for sample in round_.values():
                sample["ms"] = 1e3 * sample["wall_s"] / count
            return round_

        for what, take in (("an operation that does nothing", nothing), ("a decode step", token)):
            rounds, noisy = warmed_rounds(run, "D5", take)
            samples = {name: [round_[name]["ms"] for round_ in rounds] for name in asked}
            yield make_row(
                "D5", f"{what}, by two processes next to one, of one thread each", ONE_PROCESS,
                samples, min(samples["peer"]), lower_is_better=True, unit="ms", noisy=noisy,
                valid=True, notes=["the limit is the peer's best"],
                foreign=training.foreign_of(rounds), **run.machine_fields(),
            )  # fmt: skip


def d6(run):
    seconds = []
    batch = run.inputs.full_batches(1, 3, training.LENGTH)[0]
    for _ in range(run.rounds):
        with Ranks(run, 3) as ranks:
            ranks.ask("start_as_service", rank=training.RANK, seed=7)
            for worker in ranks.workers:
                worker.begin("train_until_error", ids=batch["ids"], labels=batch["labels"])
            time.sleep(1)
            killed = time.monotonic()
            ranks.workers[1].kill()
            answers = [ranks.workers[r].answer("train_until_error") for r in (0, 2)]
        run.progress("D6")(None)
        assert all("rank 1 has gone" in answer["error"] for answer in answers), answers
        seconds.append(max(answer["time"] for answer in answers) - killed)
    yield make_row(
        "D6", "three processes, one of which is killed while they train: until both others have "
        "the error that names it", IN_CI, {"ours": seconds, "peer": [FLOOR_S]}, GOAL_S,
        lower_is_better=True, unit="s", noisy=False, valid=True,
        notes=["the limit is the goal"], **run.machine_fields(),
    )  # fmt: skip
