"""Twinkle's engine as a worker: one adapter to train, and the frozen base to decode with."""

import json

import numpy as np
from foreign import Meter

from twinkle.core import core


class System:
    def load(self, model, precision="bf16"):
        """precision: bf16 or fp32, of weights and products."""
        self.engine = core().Engine(
            model, mixed_precision={"bf16": "bf16", "fp32": "no"}[precision]
        )

    def start_training(self, adapter, rank, make):
        """make: draw an adapter and write it to the directory; else read it from there."""
        if make:
            config = {"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"}
            self.engine.create(tenant="train", lora_json=json.dumps(config), seed=7).result()
            self.engine.save(tenant="train", directory=adapter).result()
        else:
            self.engine.create(tenant="train", directory=adapter).result()

    def start_full_training(self):
        self.engine.create(tenant="train").result()

    def train(self, ids, labels, lr):
        """One step. ids, labels: lists of B lists; labels[t] is the token after t, or -100."""
        batch = [
            {"input_ids": np.array(i), "labels": np.array(t)}
            for i, t in zip(ids, labels, strict=True)
        ]
        options = json.dumps({"lr": lr, "weight_decay": 0.01})
        with Meter() as meter:
            out = self.engine.forward_backward(tenant="train", sequences=batch).result()
            self.engine.step(tenant="train", optimizer="AdamW", options=options).result()
        loss = out["loss"] / out["num_tokens"]
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "loss": loss}

    def start_decoding(self, num_sequences):
        if not hasattr(self, "frozen"):
            self.frozen = self.engine.create(tenant="frozen", frozen=True).result()
        del num_sequences

    def start_adapters(self, count, rank):
        """Tenants whose adapters the sequences of decode(with_adapters=True) have, one each."""
        config = json.dumps({"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"})
        self.adapters = [f"adapter-{index}" for index in range(count)]
        for index, tenant in enumerate(self.adapters):
            self.engine.create(tenant=tenant, lora_json=config, seed=index).result()

    def prefill(self, prompt):
        """Seconds from a prompt to its first token. Each prompt is to be a new one."""
        with Meter() as meter:
            replies, _ = self._generate([prompt], 1)
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "tokens": replies}

    def decode(self, prompts, num_tokens, with_adapters=False):
        """Greedy. Returns seconds for `num_tokens` more tokens of each, prompts not counted."""
        tenants = self.adapters if with_adapters else None
        self._generate(prompts, 1, tenants)  # what is kept of the prompts is kept for both below
        with Meter() as meter:
            first = self._generate(prompts, 1, tenants)
            replies, whole_s = self._generate(prompts, num_tokens + 1, tenants)
        wall_s = whole_s - first[1]
        return {"wall_s": wall_s, "foreign": meter.foreign, "tokens": replies}

    def _generate(self, prompts, num_tokens, tenants=None):
        """All prompts for the frozen base, or one for each tenant, at the same time."""
        params = {
            "max_tokens": num_tokens, "seed": 0, "stop": [], "stop_token_ids": [],
            "temperature": 0.0, "top_k": -1, "top_p": 1.0, "repetition_penalty": 1.0,
            "num_samples": 1, "logprobs": False, "ignore_eos": True,
        }  # fmt: skip
        prompts = [np.array(prompt) for prompt in prompts]
        shares = [("frozen", prompts)]
        if tenants:
            shares = [(tenant, [prompt]) for tenant, prompt in zip(tenants, prompts, strict=True)]
        with Meter() as meter:
            futures = [
                self.engine.sample(tenant=tenant, prompts=part, params=[params])
                for tenant, part in shares
            ]
            out = [samples for future in futures for samples in future.result()]
        return [list(samples[0]["tokens"]) for samples in out], meter.wall_s
