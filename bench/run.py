"""Measures Twinkle beside its peers, samples taken in turn, and writes the figures.

Writes bench/results/cpu.json (rows with id, ours, peer, ratio, limit) and the table of
docs/benchmarks.md; with --quick outputs/bench/cpu.json alone. Needs the variable TWINKLE_TEST_DATA:
a folder with gsm8k_train.jsonl.
"""

import argparse
import os
import sys
from pathlib import Path

import adapters
import contention
import decoding
import limits
import prompts
import publishing
import rows
import tenants
import together
import training
import verdict
from foreign import LIMIT_CORES
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
    "R2": publishing.r2,
}


def ids(text):
    wanted = [part.strip().upper() for part in text.split(",") if part.strip()]
    unknown = [id_ for id_ in wanted if id_ not in QUESTIONS]
    if unknown or not wanted:
        known = ",".join(QUESTIONS)
        raise argparse.ArgumentTypeError(f"--only is {text!r}, it must name some of {known}")
    return wanted


def at_least_one(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of at least 1")
    return int(text)


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", type=ids, default=list(QUESTIONS), metavar="C1,C3")
    parser.add_argument(
        "--quick", action="store_true", help="two rounds, few tokens: is everything in order?"
    )
    parser.add_argument("--model", default="smollm2", help="directory or hub id")
    parser.add_argument("--threads", type=at_least_one, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=at_least_one, default=5, help="clean samples per system")
    return parser.parse_args(argv)


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


class Run:
    """What the questions need to know; they open their own workers."""

    def __init__(self, arguments):
        from inputs import Inputs

        from twinkle import hub

        self.model = hub.get(arguments.model)
        self.threads = arguments.threads
        self.inputs = Inputs(self.model)
        self.shape = limits.Shape.of(self.model)
        self.rounds = 2 if arguments.quick else arguments.rounds
        self.attempts = self.rounds if arguments.quick else 3 * self.rounds
        self.processes = 1 if arguments.quick else 3
        self.num_tokens = 16 if arguments.quick else 64
        self.bar = None
        with Worker("system_limits", self.threads) as worker:
            progress = self.progress("limits")
            self.machine = limits.measure(worker, self.rounds, self.attempts, progress)

    def machine_fields(self):
        return {"cpu": cpu_name(), "threads": self.threads, "machine": self.machine.note}

    def progress(self, name):
        """on_round of a question: moves the bar and shows what was kept."""
        from tqdm import tqdm

        if self.bar is None:
            self.bar = tqdm(unit="round", file=sys.stderr)
        self.bar.set_description(name)

        def on_round(round_):
            self.bar.update()
            if round_:
                load = max(sample["foreign"] for sample in round_.values())
                self.bar.set_postfix_str(
                    f"foreign load {load:.2f} cores" + (", dropped" if load > LIMIT_CORES else "")
                )

        return on_round


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
    elif not quick:
        print("every floor is reached")
    return 1 if invalid or missed else 0


def main(argv=None):
    arguments = parse(argv)
    run = Run(arguments)
    print(run.machine.note, flush=True)
    results, document = ROOT / "bench/results/cpu.json", ROOT / "docs/benchmarks.md"
    if arguments.quick:
        results, document = ROOT / "outputs/bench/cpu.json", None
    found = []
    for id_ in arguments.only:
        for row in QUESTIONS[id_](run):  # written at once: a run that is stopped keeps them
            rows.write([row], results, document)
            found.append(row)
            run.bar.clear()
            print(show(row), flush=True)
    run.bar.close()
    return exit_status(found, arguments.only, arguments.quick)


if __name__ == "__main__":
    sys.exit(main())
