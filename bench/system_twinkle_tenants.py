"""Twinkle's engine as a worker that holds many tenants."""

import json
import time
from pathlib import Path

import numpy as np

from twinkle.core import core

TOKENS = 8  # of each tenant's one step: enough to make its optimizer's state


def rss_mib():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("bench: /proc/self/status has no VmRSS")


class System:
    def load(self, model):
        self.engine = core().Engine(model, mixed_precision="bf16")

    def name(self):
        return "Twinkle"

    def grow(self, count, rank):
        """Creates tenants and trains each one step. The first is not counted: it warms up."""
        config = json.dumps({"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"})
        ids = np.arange(TOKENS) + 100
        batch = [{"input_ids": ids, "labels": np.roll(ids, -1)}]
        create_ms = []
        for index in range(count + 1):
            tenant = f"tenant-{index}"
            start = time.perf_counter()
            self.engine.create(tenant=tenant, lora_json=config, seed=index).result()
            create_ms.append(1e3 * (time.perf_counter() - start))
            self.engine.forward_backward(tenant=tenant, sequences=batch).result()
            self.engine.step(tenant=tenant, options='{"lr": 1e-3}').result()
            if index == 0:
                before = rss_mib()
        return {"each_mib": (rss_mib() - before) / count, "create_ms": create_ms[1:]}
