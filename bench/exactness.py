"""The cost of exactness: the same work on an engine that is deterministic and on one that is not.

    .venv/bin/python bench/exactness.py [--quick] [--mixed-precision no] [--device cuda] [MODEL]

Both live in one process and take turns; the median of the ratios of neighbouring turns is shown.
MODEL is a folder or an id, by default smollm2. --quick: few turns of little work, to see that it
runs.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from twinkle import hub
from twinkle.engine import Engine


class Work:
    """Batches of random tokens; `quick` makes them few and short."""

    def __init__(self, vocabulary, quick):
        self.vocabulary = vocabulary
        self.rounds = 3 if quick else 15
        self.sequences, self.length = (2, 32) if quick else (4, 256)
        self.counts = (1, 2) if quick else (1, 2, 8, 32)
        self.new_tokens = 4 if quick else 24

    def tokens(self, seed, length):
        ids = np.random.default_rng(seed).integers(3, self.vocabulary, length)
        return {"input_ids": ids, "labels": np.append(ids[1:], -100)}

    def train(self, tenant):
        """The step of row C1."""
        tenant.forward_backward([self.tokens(i, self.length) for i in range(self.sequences)])
        tenant.step(lr=1e-3).result()

    def decode(self, count):
        params = {"max_tokens": self.new_tokens, "temperature": 0.0, "stop": [0]}

        def run(tenant):
            tenant.sample([self.tokens(i, 16) for i in range(count)], params).result()

        return run

    def all(self):
        yield f"training, {self.sequences} x {self.length} tokens", self.train
        for count in self.counts:
            yield f"decoding, {count} sequences", self.decode(count)


def timed(work, tenant):
    start = time.perf_counter()
    work(tenant)
    return time.perf_counter() - start


def compare(work, tenants, rounds):
    """Ratios of (deterministic, not) of all turns but the first, and the last turn's seconds."""
    ratios, seconds = [], [0.0, 0.0]
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            seconds[which] = timed(work, tenants[which])
        if turn:
            ratios.append(seconds[0] / seconds[1])
    return ratios, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--quick", action="store_true", help="few turns of little work")
    parser.add_argument("--mixed-precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    model = Path(hub.get(arguments.model))
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    work = Work(min(vocabulary, 40000), arguments.quick)
    tenants = []
    for deterministic in (True, False):
        start = time.perf_counter()
        engine = Engine(
            str(model),
            mixed_precision=arguments.mixed_precision,
            device=arguments.device,
            deterministic=deterministic,
        )
        print(f"deterministic={deterministic}: starts in {time.perf_counter() - start:.2f} s")
        tenants.append(engine.tenant("a", {"r": 8, "target_modules": "all-linear"}))
    for name, run in work.all():
        ratios, seconds = compare(run, tenants, work.rounds)
        print(f"{name}: {100 * (statistics.median(ratios) - 1):+.1f}%, {seconds[0]:.3f} s")


if __name__ == "__main__":
    main()
