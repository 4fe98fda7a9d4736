"""Twinkle's engine as a worker that holds many tenants."""

import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from worker import rss_mib

from twinkle.core import core

TOKENS = 8  # for each tenant's one step: enough to make its optimizer's state
ONE_TOKEN = {"max_tokens": 1, "temperature": 0.0, "logprobs": False, "ignore_eos": True}


def write_durably(path, data):
    """A new file each time."""
    path.unlink(missing_ok=True)
    with path.open("wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


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

    def publish(self, count, rank):
        """Milliseconds from a step to the first token with the new weights, beyond what a token
        takes anyway: at once, and by way of a file. Every prompt is new: no cache helps."""
        config = json.dumps({"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"})
        self.engine.create(tenant="one", lora_json=config, seed=1).result()
        draws = np.random.default_rng(0)
        self._first_token_ms("one", draws)
        at_once, by_file = [], []
        for _ in range(count):
            ids = draws.integers(100, 40000, TOKENS)
            batch = [{"input_ids": ids, "labels": np.roll(ids, -1)}]
            self.engine.forward_backward(tenant="one", sequences=batch).result()
            self.engine.step(tenant="one", options='{"lr": 1e-3}').result()
            fresh_ms = self._first_token_ms("one", draws)
            usual_ms = self._first_token_ms("one", draws)
            at_once.append(fresh_ms - usual_ms)
            by_file.append(self._by_file_ms(draws) - usual_ms)
        return {"at_once": at_once, "by_file": by_file}

    def saves(self, count, rank):
        """Milliseconds that another tenant's operation waits because of a save that came before
        it, and until the save is durable; in turn with a copy of as many bytes into memory that
        was used before, and with a file of as many. Each save follows a step."""
        config = json.dumps({"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"})
        ids = np.arange(TOKENS) + 100
        batch = [{"input_ids": ids, "labels": np.roll(ids, -1)}]
        for tenant in ("one", "other"):
            self.engine.create(tenant=tenant, lora_json=config, seed=1).result()
        out = {"stall": [], "durable": [], "memcpy": [], "disk": []}
        with tempfile.TemporaryDirectory() as folder:
            directory, kept = Path(folder) / "save", None
            for _ in range(count + 1):  # the first warms up
                self.engine.forward_backward(tenant="one", sequences=batch).result()
                self.engine.step(tenant="one", options='{"lr": 1e-3}').result()
                usual_ms = self._ms(self._ask_nothing)
                start = time.perf_counter()
                save = self.engine.save(tenant="one", directory=str(directory), optimizer=True)
                self._ask_nothing()
                out["stall"].append(1e3 * (time.perf_counter() - start) - usual_ms)
                save.result()
                out["durable"].append(1e3 * (time.perf_counter() - start))
                size = sum(path.stat().st_size for path in directory.iterdir())
                if kept is None:
                    kept, source = np.zeros(size, np.uint8), np.ones(size, np.uint8)
                out["memcpy"].append(self._ms(np.copyto, kept, source))
                out["disk"].append(self._ms(write_durably, Path(folder) / "file", source))
        for tenant in ("one", "other"):
            self.engine.delete(tenant=tenant).result()
        return {name: times[1:] for name, times in out.items()} | {"bytes": size}

    def _ask_nothing(self):
        self.engine.zero_grad(tenant="other").result()

    @staticmethod
    def _ms(call, *arguments):
        start = time.perf_counter()
        call(*arguments)
        return 1e3 * (time.perf_counter() - start)

    def forget(self):
        self.engine.delete(tenant="one").result()

    def _first_token_ms(self, tenant, draws):
        prompt = draws.integers(100, 40000, TOKENS)
        start = time.perf_counter()
        self.engine.sample(tenant=tenant, prompts=[prompt], params=[ONE_TOKEN]).result()
        return 1e3 * (time.perf_counter() - start)

    def _by_file_ms(self, draws):
        with tempfile.TemporaryDirectory() as folder:
            directory = str(Path(folder) / "adapter")
            start = time.perf_counter()
            self.engine.save(tenant="one", directory=directory).result()
            self.engine.create(tenant="reader", directory=directory).result()
            ready_ms = 1e3 * (time.perf_counter() - start)
            token_ms = self._first_token_ms("reader", draws)
        self.engine.delete(tenant="reader").result()
        return ready_ms + token_ms
