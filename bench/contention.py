"""C11: what is left of LoRA training when another program keeps one core busy."""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from foreign import cpu_seconds, warmed_rounds
from rows import make_row
from training import LENGTH, SIZE, SYSTEMS, foreign_of, limit_tokens_s, num_tokens, start, step

SHARE = 0.75  # at best: half of the time of one of two cores is lost


class Thief:
    """A process that never waits. Use as a context manager."""

    def __enter__(self):
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        time.sleep(0.2)  # it has started
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def seconds(self):
        """CPU time that it has used."""
        return cpu_seconds(self._process.pid)


def disturbed(worker, batch):
    """A step beside the thief, whose load is known and not foreign."""
    with Thief() as thief:
        before = thief.seconds()
        sample = step(worker, batch)
        known = (thief.seconds() - before) / sample["wall_s"]
    return sample | {"foreign": max(0.0, sample["foreign"] - known)}


def c11(run):
    batches = run.inputs.full_batches(2 * (run.attempts + 1), SIZE, LENGTH)
    kept = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        adapter = str(Path(folder) / "adapter")
        workers = {name: start(stack, run, system, adapter) for name, system in SYSTEMS.items()}
        peer_name = workers["peer"].ask("name")

        def take(index):
            calm, beside = batches[2 * index], batches[2 * index + 1]
            round_ = {}
            for name, worker in workers.items():
                round_[name] = step(worker, calm)
                round_[name + " disturbed"] = disturbed(worker, beside)
            return round_

        rounds, noisy = warmed_rounds(run, "C11", take)
    tokens = num_tokens(batches[0])
    rates = {way: [tokens / round_[way]["wall_s"] for round_ in rounds] for way in rounds[0]}
    for name in kept:
        pairs = zip(rates[name + " disturbed"], rates[name], strict=True)
        kept[name] = [100 * beside / calm for beside, calm in pairs]
    cores = len(os.sched_getaffinity(0))
    theirs = sorted(kept["peer"])[len(kept["peer"]) // 2]
    notes = [f"{peer_name} keeps {theirs:.0f}% of its own rate"]
    if cores != run.threads or cores != 2:
        notes.append(f"{run.threads} threads on {cores} cores")
    yield make_row(
        "C11", "LoRA training as in C1 while another program keeps one core busy",
        "Twinkle, undisturbed", {"ours": rates["ours disturbed"], "peer": rates["ours"]},
        SHARE * limit_tokens_s(run, batches[:1]), unit="tokens/s", noisy=noisy, valid=True,
        notes=notes, kept=kept, foreign=foreign_of(rounds), **run.machine_fields(),
    )  # fmt: skip
