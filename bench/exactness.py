"""What exactness costs: the same work on an engine that is deterministic and on one that is not.

    .venv/bin/python bench/exactness.py [model]

Both live in one process and take turns; the median of the ratios of neighbouring turns is shown.
"""

import statistics
import sys
import time

import numpy as np

from twinkle import hub
from twinkle.engine import Engine

ROUNDS = 15


def tokens(seed, length):
    ids = np.random.default_rng(seed).integers(3, 40000, length)
    return {"input_ids": ids, "labels": np.append(ids[1:], -100)}


def timed(work, tenant):
    start = time.perf_counter()
    work(tenant)
    return time.perf_counter() - start


def train(tenant):
    """The step of row C1."""
    tenant.forward_backward([tokens(i, 256) for i in range(4)])
    tenant.step(lr=1e-3).result()


def decode(count):
    def run(tenant):
        prompts = [tokens(i, 16) for i in range(count)]
        tenant.sample(prompts, {"max_tokens": 24, "temperature": 0.0, "stop": [0]}).result()

    return run


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else hub.get("smollm2")
    tenants = []
    for deterministic in (True, False):
        start = time.perf_counter()
        engine = Engine(model, deterministic=deterministic)
        print(f"deterministic={deterministic}: starts in {time.perf_counter() - start:.2f} s")
        tenants.append(engine.tenant("a", {"r": 8, "target_modules": "all-linear"}))
    works = {"training, 4 x 256 tokens": train}
    works |= {f"decoding, {n} sequences": decode(n) for n in (1, 2, 8, 32)}
    for name, work in works.items():
        ratios = []
        for turn in range(ROUNDS):
            order = (0, 1) if turn % 2 else (1, 0)
            seconds = [0.0, 0.0]
            for which in order:
                seconds[which] = timed(work, tenants[which])
            if turn:
                ratios.append(seconds[0] / seconds[1])
        print(f"{name}: {100 * (statistics.median(ratios) - 1):+.1f}%, {seconds[0]:.3f} s")


if __name__ == "__main__":
    main()
