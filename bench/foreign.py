"""How many cores others keep busy while a sample runs, and which rounds are kept.

Foreign load = (busy time of all cores - this process's own) / wall time, from /proc/stat. It is in
cores; the tick of 10 ms bounds its precision, so samples should last half a second or more.
"""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT_CORES = 0.05  # a round with more is dropped and taken again
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def busy_seconds(stat_text):
    """Seconds that all cores together have worked since the start, of the text of /proc/stat."""
    fields = [int(field) for field in stat_text.split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) * TICK_S


def cpu_seconds(pid):
    """CPU time that a process has used, all of its threads."""
    text = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(text[11]) + int(text[12])) * TICK_S


class Meter:
    """Measures a `with` block: wall_s, used_s (own CPU time), and foreign (cores). wait: called at
    its begin and end."""

    def __init__(self, wait=lambda: None):
        self._wait = wait

    def __enter__(self):
        self._wait()
        self._busy, self._own = self._now()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_):
        self._wait()
        self.wall_s = time.perf_counter() - self._start
        busy, own = self._now()
        self.used_s = own - self._own
        self.foreign = max(0.0, (busy - self._busy) - self.used_s) / self.wall_s

    @staticmethod
    def _now():
        own = os.times()
        return busy_seconds(Path("/proc/stat").read_text()), own.user + own.system


def is_clean(round_, limit=LIMIT_CORES):
    """A round is {system: sample}; it counts when no sample of it met foreign load."""
    return all(sample["foreign"] <= limit for sample in round_.values())


@dataclass(frozen=True)
class Patience:
    """How much foreign load a round may meet, and how long rounds are taken."""

    limit_cores: float = LIMIT_CORES
    seconds: float = math.inf  # beyond them no other round is begun


PATIENCE = Patience()


def take_rounds(take, wanted, attempts, on_round=lambda _: None, patience=PATIENCE):
    """Calls take(i) -> round until `wanted` rounds are clean or `attempts` were made, or patience
    ends.

    Returns (rounds, noisy). Too few clean rounds: noisy is True and `rounds` are the `wanted` ones
    with the least foreign load, in the order in which they were taken.
    """
    taken, end = [], time.monotonic() + patience.seconds
    while len(taken) < attempts and sum(is_clean(r, patience.limit_cores) for r in taken) < wanted:
        if taken and time.monotonic() > end:
            break
        taken.append(take(len(taken)))
        on_round(taken[-1])
    clean = [round_ for round_ in taken if is_clean(round_, patience.limit_cores)]
    if len(clean) >= wanted:
        return clean, False
    loads = [max(sample["foreign"] for sample in round_.values()) for round_ in taken]
    least = sorted(range(len(taken)), key=loads.__getitem__)[:wanted]
    return [taken[i] for i in sorted(least)], True


def warmed_rounds(run, label, take):
    """take_rounds as the run wants them: take(1), take(2), ... after take(0), which warms up."""
    take(0)
    return take_rounds(
        lambda i: take(i + 1), run.rounds, run.attempts, run.progress(label), run.patience
    )


def in_turn(run, label, systems, sample_of, tokens):
    """Rounds of {system: sample_of(system, i)}, i = 1, 2, ...; a round 0 warms up.

    Returns (rounds, {system: tokens / wall_s of each round}, noisy). A sample whose wall_s is no
    time, as where what is subtracted took longer than the whole, counts as one under foreign load.
    """

    def take(i):
        taken = {system: sample_of(system, i) for system in systems}
        for sample in taken.values():
            if not sample["wall_s"] > 0:
                sample["foreign"] = math.inf  # taken again
        return taken

    rounds, noisy = warmed_rounds(run, label, take)
    rates = {system: [tokens / r[system]["wall_s"] for r in rounds] for system in systems}
    return rounds, rates, noisy
