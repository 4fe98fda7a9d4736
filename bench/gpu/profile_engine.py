"""Where a step's time goes on a GPU: the engine on four layers of a published shape under torch's
profiler: one training step, a decoding step of 1, 8 and 64 sequences without and with adapters, by
graphs and without, and prompts of 512 and 8192 tokens.

    bench/gpu/profile_engine.py [--shapes 4B,8B] [--parts train,prompts,decode,eager]
        [--no-deterministic] [--out FILE] [--rehearse]

Prints microseconds per kernel and launches per layer; --out has all of them. --rehearse: tiny
shapes on the CPU; the figures mean nothing."""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import shapes
import torch

from twinkle.core import core

LAYERS = 4
LORA = json.dumps({"r": 16, "lora_alpha": 32, "target_modules": "all-linear"})
GREEDY = {
    "seed": 0, "stop": [], "stop_token_ids": [], "temperature": 0.0, "top_k": -1, "top_p": 1.0,
    "repetition_penalty": 1.0, "num_samples": 1, "logprobs": False, "ignore_eos": True,
}  # fmt: skip


class Profile:
    def __init__(self, arguments):
        self.rehearse, self.rows = arguments.rehearse, []
        self.device = "cpu" if arguments.rehearse else "cuda"
        self.deterministic = arguments.deterministic
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device == "cuda":
            activities = [torch.profiler.ProfilerActivity.CUDA]
        self.activities = activities

    def open(self, shape, **options):
        of = (shapes.TINY if self.rehearse else shapes.REAL)[shape]
        of = {**of, "num_hidden_layers": 2 if self.rehearse else LAYERS}
        folder = shapes.written(
            Path("outputs/gpu") if self.rehearse else "/dev/shm", of, self.device
        )
        self.layers = of["num_hidden_layers"]
        self.vocab = of["vocab_size"]
        return core().Engine(
            folder, mixed_precision="bf16", device=self.device, deterministic=self.deterministic,
            **options,
        )  # fmt: skip

    def measure(self, what, call, warm=3):
        """call() waits for what it asks. Graphs come with the third time."""
        for _ in range(warm):
            call()
        begin = time.perf_counter()
        call()
        wall = time.perf_counter() - begin
        with torch.profiler.profile(activities=self.activities) as seen:
            call()
        kernels = []
        for event in seen.key_averages():
            on_device = self.device == "cuda"
            us = event.self_device_time_total if on_device else event.self_cpu_time_total
            if us > 0:
                kernels.append({"kernel": event.key[:90], "us": us, "count": event.count})
        kernels.sort(key=lambda kernel: -kernel["us"])
        busy = sum(kernel["us"] for kernel in kernels)
        launches = sum(kernel["count"] for kernel in kernels) / self.layers
        self.rows.append({"what": what, "wall_us": 1e6 * wall, "busy_us": busy, "kernels": kernels})
        print(
            f"| {what} | wall {1e6 * wall:.0f} us, busy {busy:.0f},"
            f" {launches:.0f} launches a layer |"
        )
        for kernel in kernels[:12]:
            print(f"|   {kernel['us']:.0f} us in {kernel['count']} | {kernel['kernel']} |")


def train(profile, shape):
    engine = profile.open(shape)
    engine.create(tenant="a", lora_json=LORA, seed=1).result()
    length = 24 if profile.rehearse else 4096
    ids = np.arange(length) % profile.vocab
    batch = [{"input_ids": ids, "labels": np.roll(ids, -1)}]

    def step():
        engine.forward_backward(tenant="a", sequences=batch).result()
        engine.step(tenant="a", optimizer="AdamW", options='{"lr": 0.0001}').result()

    profile.measure(f"{shape}: a training step of {length} tokens", step)
    print("graphs:", engine.stats()["graph_failure"] or "no recording failed")


def decode(profile, shape, graphs):
    context = 8 if profile.rehearse else 1024
    # A batch's first token comes with its prompts: 9 tokens are 8 steps of decoding, and the last
    # calls find the prompts in the cache.
    for adapters in (0, 2) if profile.rehearse else (0, 8, 64):
        engine = profile.open(
            shape, kv_tokens=1024 if profile.rehearse else 131072, decode_graphs=graphs
        )
        names = [f"t{i}" for i in range(adapters)] or ["base"]
        for i, name in enumerate(names):
            options = {"lora_json": LORA, "seed": i} if adapters else {"frozen": True}
            engine.create(tenant=name, **options).result()
        for count in (1, 4) if profile.rehearse else (1, 8, 64):
            rows = [[(i + 7 * r) % profile.vocab for i in range(context)] for r in range(count)]

            def run(rows=rows, names=names, engine=engine):
                asked = [
                    engine.sample(
                        tenant=names[r % len(names)],
                        prompts=[row],
                        params=[{**GREEDY, "max_tokens": 9}],
                    )
                    for r, row in enumerate(rows)
                ]
                for future in asked:
                    future.result()

            by = "by graphs" if graphs else "without graphs"
            profile.measure(
                f"{shape}: 8 steps of {count} sequences, {adapters} adapters, {by}", run
            )
        print("graphs:", engine.stats()["graph_failure"] or "no recording failed")


def prefill(profile, shape):
    engine = profile.open(shape, kv_tokens=1024 if profile.rehearse else 32768)
    engine.create(tenant="base", frozen=True).result()
    for length in (8, 32) if profile.rehearse else (512, 8192):
        rows = iter(range(1, 1000))

        def run(length=length, rows=rows):
            first = next(rows)  # another prompt each time
            prompt = [(first * 31 + i) % profile.vocab for i in range(length)]
            engine.sample(
                tenant="base", prompts=[prompt], params=[{**GREEDY, "max_tokens": 1}]
            ).result()

        profile.measure(f"{shape}: a prompt of {length} tokens", run, warm=1)


PARTS = {
    "train": train,
    "prompts": prefill,
    "decode": lambda profile, shape: decode(profile, shape, True),
    "eager": lambda profile, shape: decode(profile, shape, False),  # decoding without graphs
}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="4B,8B")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu/profile.json"))
    parser.add_argument("--deterministic", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args(argv)
    profile = Profile(arguments)
    for shape in ["4B"] if arguments.rehearse else arguments.shapes.split(","):
        for part in arguments.parts.split(","):
            PARTS[part](profile, shape)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(profile.rows, indent=1))


if __name__ == "__main__":
    main()
