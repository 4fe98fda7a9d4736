"""Measures Twinkle beside its peers, samples taken in turn, and writes the figures.

On the CPU it measures C1 to C12, F1 to F4, P1, R1c, R2, R4, S1 to S6, K2, D1 and D3 to D7, and
needs the variable TWINKLE_TEST_DATA: a folder with gsm8k_train.jsonl. With --device cuda it
measures G1 to G11 on models of drawn weights. Writes bench/results/cpu.json, or the GPU's file
beside it (rows with id, ours, peer, ratio, limit), and the table of docs/benchmarks.md; with
--quick and --rehearse files in outputs/bench alone, with --out a file of DIR and a table on the
screen.
"""

import argparse
import os
import sys
from pathlib import Path

import adapters
import calls
import contention
import decoding
import families
import limits
import loops
import prompts
import publishing
import ranks
import rows
import saving
import syncing
import tenants
import together
import traffic
import training
import verdict
from device import name_of_gpu
from foreign import PATIENCE
from gpu import run as gpu_run
from service import questions as service
from service import sdk
from service import training as of_service
from worker import Worker

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = {
    "C1": training.c1,
    "C2": training.c2,
    "C3": training.c3,
    "C4": training.c4,
    "C5": together.c5,
    "C6": together.c6,
    "C7": decoding.c7,
    "C8": decoding.c8,
    "C9": adapters.c9,
    "C10": prompts.c10,
    "C11": contention.c11,
    "C12": tenants.c12,
    "F1": training.f1,
    "F2": families.f2,
    "F3": families.f3,
    "F4": families.f4,
    "P1": loops.p1,
    "R1c": loops.r1c,
    "R2": publishing.r2,
    "R4": syncing.r4,
    "S1": sdk.both_s1,
    "S2": service.s2,
    "S3": service.s3,
    "S4": of_service.s4,
    "S5": of_service.s5,
    "S6": sdk.s6,
    "K2": saving.k2,
    "D1": traffic.d1,
    "D3": traffic.d3,
    "D4": ranks.d4,
    "D5": ranks.d5,
    "D6": ranks.d6,
    "D7": calls.d7,
}


def ids(text):
    names = {id_.upper(): id_ for id_ in (*QUESTIONS, *rows.GPU)}
    wanted = [part.strip().upper() for part in text.split(",") if part.strip()]
    wanted = [names.get(id_, id_) for id_ in wanted]
    unknown = [id_ for id_ in wanted if id_ not in QUESTIONS and id_ not in rows.GPU]
    if unknown or not wanted:
        known = ",".join([*QUESTIONS, *rows.GPU])
        raise argparse.ArgumentTypeError(f"--only is {text!r}, it must name some of {known}")
    return wanted


def shapes(text):
    wanted = [part.strip() for part in text.split(",")]
    if not set(wanted) <= set(gpu_run.questions.PLAN):
        known = ",".join(gpu_run.questions.PLAN)
        raise argparse.ArgumentTypeError(f"--shapes is {text!r}, it must name some of {known}")
    return wanted


def at_least_one(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of at least 1")
    return int(text)


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", type=ids, metavar="C1,C3")
    parser.add_argument(
        "--shapes", type=shapes, metavar="head,0.6B", help="the G questions of these models alone"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the figures go instead")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the G questions"
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="the G questions with tiny models, on the CPU too; no figure is kept",
    )
    parser.add_argument(
        "--quick", action="store_true", help="two rounds, few tokens: is everything in order?"
    )
    parser.add_argument("--model", default="smollm2", help="of the CPU: directory or hub id")
    parser.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="of the G questions: the engine's option",
    )
    parser.add_argument(
        "--seconds", type=at_least_one, default=15, help="of a G row, until its last round begins"
    )
    parser.add_argument("--threads", type=at_least_one, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=at_least_one, default=5, help="clean samples per system")
    arguments = parser.parse_args(argv)
    on_gpu = arguments.device == "cuda" or arguments.rehearse
    asked, other = (rows.GPU, QUESTIONS) if on_gpu else (QUESTIONS, rows.GPU)
    if arguments.shapes and not on_gpu:
        parser.error("--shapes is of the G questions: add --device cuda, or --rehearse")
    arguments.only = arguments.only or list(asked)
    for id_ in arguments.only:
        if id_ in other:
            way = "is of the CPU: leave --device cuda and --rehearse out"
            if id_ in rows.GPU:
                way = (
                    "is of a GPU: add --device cuda, or --rehearse to try its code on the CPU "
                    "with tiny models"
                )
            parser.error(f"--only names {id_}, which {way}")
    return arguments


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


class Bar:
    """Where a run is."""

    bar = None

    def progress(self, name, patience=PATIENCE):
        """on_round of a question: moves the bar and shows what was kept."""
        from tqdm import tqdm

        if self.bar is None:
            self.bar = tqdm(unit="round", file=sys.stderr)
        self.bar.set_description(name)

        def on_round(round_):
            self.bar.update()
            if round_:
                load = max(sample["foreign"] for sample in round_.values())
                dropped = ", dropped" if load > patience.limit_cores else ""
                self.bar.set_postfix_str(f"foreign load {load:.2f} cores{dropped}")

        return on_round

    def close(self):
        if self.bar is not None:
            self.bar.close()

    def say(self, text):
        """A line above the bar."""
        if self.bar is not None:
            self.bar.clear()
        print(text, flush=True)


class Run:
    """Everything that the questions need; they open their own workers."""

    device, options, kept, patience, beside_llama = "cpu", {}, None, PATIENCE, True

    def __init__(self, arguments, bar):
        from inputs import Inputs

        from twinkle import hub

        self.progress = bar.progress
        self.model = hub.get(arguments.model)
        self.threads = arguments.threads
        self.inputs = Inputs(self.model)
        self.shape = limits.Shape.of(self.model)
        self.rounds = 2 if arguments.quick else arguments.rounds
        self.attempts = self.rounds if arguments.quick else 3 * self.rounds
        self.processes = 1 if arguments.quick else 3
        self.num_tokens = 16 if arguments.quick else 64
        with Worker("system_limits", self.threads) as worker:
            self.machine = limits.measure(worker, self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def machine_fields(self):
        return {"cpu": cpu_name(), "threads": self.threads, "machine": self.machine.note}

    def rows(self, only):
        """Rows of the named questions, as they are measured."""
        for id_ in only:
            yield from QUESTIONS[id_](self)


def show(row):
    asked = {"must be": row["floor"], "wanted": row["goal"]}
    asked = ", ".join(f"{text} {ratio}" for text, ratio in asked.items() if ratio is not None)
    flags = "" if row["valid"] else " INVALID"
    flags += " NOISY" if row["noisy"] else ""
    return (
        f"{row['id']:3} {row['what']}: {row['ours']:,} {row['unit']}, {row['peer_name']} "
        f"{row['peer']:,}: ratio {row['ratio']:.2f} ({asked or 'information'}), "
        f"{row['share_of_limit']:.0%} of the limit {row['limit']:,}{flags}; "
        + "; ".join(row["notes"])
    )


def exit_status(found, only, quick):
    """1 when a row does not count, or, in a full run, misses what it must reach; says which."""
    invalid = [row for row in found if not row["valid"]]
    for row in invalid:
        print(f"{row['id']} {row['what']}, beside {row['peer_name']}: its losses differ too much")
    missed = [] if quick else verdict.misses(found, only)
    if missed:
        print(verdict.table(missed))
    elif not found:
        print("nothing was measured: no question of --only is of these --shapes")
        return 1
    elif not quick:
        print("every floor is reached")
    return 1 if invalid or missed else 0


def places(arguments):
    """The JSON file and the document that the rows go to; no document: of a trial, or elsewhere."""
    name = "cpu.json" if arguments.device == "cpu" else rows.file_of(name_of_gpu())
    if arguments.rehearse:
        name = "rehearsal.json"
    if arguments.out or arguments.rehearse or arguments.quick:
        return (arguments.out or ROOT / "outputs/bench") / name, None
    return ROOT / "bench/results" / name, ROOT / "docs/benchmarks.md"


def main(argv=None):
    arguments = parse(argv)
    results, document = places(arguments)
    bar, found = Bar(), []
    on_gpu = arguments.device == "cuda" or arguments.rehearse
    with gpu_run.Run(arguments, bar, cpu_name()) if on_gpu else Run(arguments, bar) as run:
        bar.say(run.machine.note)
        for row in run.rows(arguments.only):  # written at once: a run that is stopped keeps them
            rows.write([row], results, document)
            found.append(row)
            bar.say(show(row))
    bar.close()
    if arguments.out:
        print(rows.with_absent(found, []))
    asked = [] if arguments.shapes else arguments.only  # others' floors are not asked for
    return exit_status(found, asked, arguments.quick or arguments.rehearse)


if __name__ == "__main__":
    sys.exit(main())
