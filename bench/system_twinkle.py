"""Twinkle's engine as a worker: one adapter to train, and the frozen base to decode with."""

import json
import time

import numpy as np
from device import Device

from twinkle.core import core

GREEDY = {
    "seed": 0, "stop": [], "stop_token_ids": [], "temperature": 0.0, "top_k": -1, "top_p": 1.0,
    "repetition_penalty": 1.0, "num_samples": 1, "logprobs": False, "ignore_eos": True,
}  # fmt: skip


def told(meter):
    """used_s: CPU time of this process."""
    return {"wall_s": meter.wall_s, "foreign": meter.foreign, "used_s": meter.used_s}


class System:
    def load(self, model, precision="bf16", device="cpu", options=None):
        """precision: bf16 or fp32, of weights and products. options: more of the engine's."""
        self.device = Device(device)
        self.peak_mib = self.device.peak_mib
        self.tenants = set()
        self.engine = self.make_engine(
            model,
            mixed_precision={"bf16": "bf16", "fp32": "no"}[precision],
            device=device,
            **(options or {}),
        )

    def make_engine(self, model, **options):
        return core().Engine(model, **options)

    def null_operations(self, count):
        """Seconds of each of so many operations that do nothing, one after the other."""
        out = []
        with self.device.meter() as meter:
            for _ in range(count):
                start = time.perf_counter()
                self.engine.zero_grad(tenant="train").result()
                out.append(time.perf_counter() - start)
        return {"each_s": out, **told(meter)}

    def create(self, tenant, **fields):
        self.engine.create(tenant=tenant, **fields).result()
        self.tenants.add(tenant)

    def forget(self):
        """Deletes all tenants, and what the sampler keeps of their prompts."""
        for tenant in self.tenants:
            self.engine.delete(tenant=tenant).result()
        self.tenants.clear()
        self.engine.reset_prefix_cache()

    def start_training(self, adapter, rank, make, lora=None):
        """make: draw an adapter and write it to the directory; else read it from there. lora: more
        of its config."""
        if make:
            config = {"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"}
            self.create("train", lora_json=json.dumps(config | (lora or {})), seed=7)
            self.engine.save(tenant="train", directory=adapter).result()
        else:
            self.create("train", directory=adapter)

    def start_as_service(self, rank, seed):
        """The adapter of the service's create_model with these, but for the head's."""
        linears = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = {"r": rank, "lora_alpha": 32, "target_modules": linears}
        self.create("train", lora_json=json.dumps(config), seed=seed)

    def step_as_service(self, rows, adam):
        """The work of its forward_backward and optim_step; rows: of (tokens, targets, weights)."""
        names = "input_ids", "labels", "weights"
        options = {"lr": adam["learning_rate"], "betas": [adam["beta1"], adam["beta2"]]}
        options = json.dumps(options | {"eps": adam["eps"], "weight_decay": 0.0})
        with self.device.meter() as meter:
            batch = [dict(zip(names, map(np.array, row), strict=True)) for row in rows]
            passed = self.engine.forward_backward(
                tenant="train", sequences=batch, loss="cross_entropy"
            )
            stepped = self.engine.step(
                tenant="train", optimizer="AdamW", options=options, divide=False
            )
            loss = passed.result()["loss"]
            stepped.result()
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "loss": loss}

    def start_full_training(self):
        self.create("train")

    def train(self, ids, labels, lr, repeats=1):
        """Steps with one batch; the loss of the last. ids, labels: lists of B lists; labels[t] is
        the token after t, or -100."""
        batch = [
            {"input_ids": np.array(i), "labels": np.array(t)}
            for i, t in zip(ids, labels, strict=True)
        ]
        options = json.dumps({"lr": lr, "weight_decay": 0.01})
        with self.device.meter() as meter:
            for _ in range(repeats):
                out = self.engine.forward_backward(tenant="train", sequences=batch).result()
                self.engine.step(tenant="train", optimizer="AdamW", options=options).result()
        return {**told(meter), "loss": out["loss"] / out["num_tokens"]}

    def start_decoding(self, num_sequences):
        if "frozen" not in self.tenants:
            self.create("frozen", frozen=True)
        del num_sequences

    def start_adapters(self, count, rank):
        """Tenants whose adapters the sequences of decode(with_adapters=True) have in turn."""
        config = json.dumps({"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"})
        self.adapters = [f"adapter-{index}" for index in range(count)]
        for index, tenant in enumerate(self.adapters):
            self.create(tenant, lora_json=config, seed=index)

    def prefill(self, prompt):
        """Seconds from a prompt to its first token. Each prompt is to be a new one."""
        with self.device.meter() as meter:
            replies, _ = self._generate([prompt], 1)
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": replies}

    def decode(self, prompts, num_tokens, with_adapters=False):
        """Greedy. Returns seconds for `num_tokens` more tokens of each, prompts not counted."""
        tenants = self.adapters if with_adapters else None
        self._generate(prompts, 1, tenants)  # both below keep the prompts' part
        with self.device.meter() as meter:
            first = self._generate(prompts, 1, tenants)
            replies, whole_s = self._generate(prompts, num_tokens + 1, tenants)
        return {**told(meter), "wall_s": whole_s - first[1], "tokens": replies}

    def throughput(self, prompts, counts):
        """Greedy, all at once: prompt i is to have counts[i] more tokens. Seconds, and how many
        there are. Nothing is kept of the same prompts before."""
        self.engine.reset_prefix_cache()
        params = [GREEDY | {"max_tokens": count} for count in counts]
        prompts = [np.array(prompt) for prompt in prompts]
        with self.device.meter() as meter:
            out = self.engine.sample(tenant="frozen", prompts=prompts, params=params).result()
        tokens = sum(len(samples[0]["tokens"]) for samples in out)
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": tokens}

    def reply(self, prompts, num_tokens):
        """Greedy, by the frozen base, until a reply ends by itself; prompts are counted."""
        prompts = [np.array(prompt) for prompt in prompts]
        params = GREEDY | {"max_tokens": num_tokens, "ignore_eos": False}
        with self.device.meter() as meter:
            out = self.engine.sample(tenant="frozen", prompts=prompts, params=[params]).result()
        return {**told(meter), "tokens": sum(len(samples[0]["tokens"]) for samples in out)}

    def _generate(self, prompts, num_tokens, tenants=None):
        """All prompts for the frozen base, or dealt out to the tenants, at the same time."""
        tenants = tenants or ["frozen"]
        prompts = [np.array(prompt) for prompt in prompts]
        params = GREEDY | {"max_tokens": num_tokens}
        replies = [None] * len(prompts)
        with self.device.meter() as meter:
            futures = [
                self.engine.sample(tenant=t, prompts=prompts[i :: len(tenants)], params=[params])
                for i, t in enumerate(tenants)
            ]
            for i, future in enumerate(futures):
                replies[i :: len(tenants)] = future.result()
        return [list(samples[0]["tokens"]) for samples in replies], meter.wall_s
