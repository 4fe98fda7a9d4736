"""Twinkle as a script uses it: TransformersModel and TorchSampler on one engine."""

import numpy as np
from device import Device
from system_twinkle import told

from twinkle import LoraConfig, TorchSampler, TransformersModel
from twinkle.advantage import GRPOAdvantage

RANK = 8


class System:
    def load(self, model, precision="bf16", device="cpu", options=None):
        del options
        self.device = Device(device)
        self.model = TransformersModel(
            model_id=model, mixed_precision={"bf16": "bf16", "fp32": "no"}[precision]
        )
        self.sampler = TorchSampler(model=self.model)
        self.model.set_template("Template", model_id=model)
        self.sampler.set_template("Template", model_id=model)

    def start(self, lr, loss="CrossEntropyLoss"):
        """A new adapter of rank 8 on all linears."""
        lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
        self.model.add_adapter_to_model("default", lora)
        self.model.set_loss(loss)
        self.model.set_optimizer("AdamW", lr=lr, weight_decay=0.01)

    def train(self, ids, labels):
        """One step, as system_twinkle's."""
        batch = [
            {"input_ids": np.array(i), "labels": np.array(t)}
            for i, t in zip(ids, labels, strict=True)
        ]
        with self.device.meter() as meter:
            self.model.forward_backward(inputs=batch)
            self.model.clip_grad_and_step(max_grad_norm=1.0)
        return told(meter)

    def reply(self, prompts, num_tokens):
        """Greedy, by the frozen base, until a reply ends by itself; prompts are counted."""
        inputs = [{"input_ids": np.array(prompt)} for prompt in prompts]
        params = {"max_tokens": num_tokens, "temperature": 0.0}
        with self.device.meter() as meter:
            out = self.sampler.sample(inputs, params, use_base_model=True)
        tokens = sum(len(sequence.tokens) for reply in out for sequence in reply.sequences)
        return {**told(meter), "tokens": tokens}

    def grpo_step(self, questions, group, num_tokens):
        """One step of examples/grpo.py's loop: `group` replies a question, of at most num_tokens
        tokens each. The reward asks for digits: what one costs is nothing here."""
        rows = [{"messages": [{"role": "user", "content": question}]} for question in questions]
        params = {"num_samples": group, "max_tokens": num_tokens, "logprobs": 1, "temperature": 1.0}
        with self.device.meter() as meter:
            sampled = self.sampler.sample(rows, params)
            replies = [sequence for reply in sampled for sequence in reply.sequences]
            rewards = [float(sum(c.isdigit() for c in reply.decoded)) for reply in replies]
            advantages = GRPOAdvantage()(rewards, num_generations=group).tolist()
            logps = [reply.logprobs for reply in replies]
            self.model.forward_backward(
                inputs=replies, advantages=advantages, old_logps=logps, temperature=1.0
            )
            self.model.clip_grad_and_step(max_grad_norm=1.0)
        return {**told(meter), "tokens": sum(len(reply.tokens) for reply in replies)}
