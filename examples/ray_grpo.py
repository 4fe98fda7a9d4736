"""Reinforcement learning over processes: GRPO on sums, in the workers of a Ray cluster.

The script starts the cluster, or joins the one that RAY_ADDRESS names. Each worker samples and
trains its part of a batch; what it computes has the bits of one process.

.venv/bin/python examples/ray_grpo.py
"""

import argparse
import time

import twinkle
from twinkle import DeviceGroup, DeviceMesh, LoraConfig, TorchSampler, TransformersModel
from twinkle.advantage import GRPOAdvantage

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="smollm2")
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--max-tokens", type=int, default=24)
args = parser.parse_args()

print(f"starting {args.workers} workers in a Ray cluster: about 15 s")
twinkle.initialize(
    mode="ray",
    groups=[DeviceGroup("workers", ranks=args.workers, device_type="cpu")],
    global_device_mesh=DeviceMesh.from_sizes(dp_size=args.workers),
)
model = TransformersModel(model_id=args.model, remote_group="workers")
model.add_adapter_to_model("default", LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
model.set_loss("GRPOLoss", epsilon=0.2)
model.set_optimizer("AdamW", lr=1e-4)
sampler = TorchSampler(model=model, remote_group="workers")  # with the weights that are trained
sampler.set_template("Template")
print(twinkle.get_device_placement())

sums = [(12, 7), (30, 14), (25, 25), (41, 8)]
prompts = [{"messages": [{"role": "user", "content": f"What is {a} + {b}?"}]} for a, b in sums]
params = {"num_samples": 4, "max_tokens": args.max_tokens, "logprobs": 1}
print(
    f"each step: {len(sums)} sums, {params['num_samples']} replies to each, sampled and trained by "
    f"{args.workers} workers; right replies are rewarded, and short ones. "
    "So few steps show that it runs, not that it learns"
)
for step in range(1, args.steps + 1):
    began = time.monotonic()
    replies = [
        reply for response in sampler.sample(prompts, params) for reply in response.sequences
    ]
    totals = [a + b for a, b in sums for _ in range(params["num_samples"])]
    right = [str(t) in r.decoded for t, r in zip(totals, replies, strict=True)]
    rewards = [ok - len(r.tokens) / 1000 for ok, r in zip(right, replies, strict=True)]  # and short
    advantages = GRPOAdvantage()(rewards, num_generations=params["num_samples"]).tolist()
    old_logps = [reply.logprobs for reply in replies]
    model.forward_backward(inputs=replies, old_logps=old_logps, advantages=advantages)
    norm = float(model.clip_grad_and_step(max_grad_norm=1.0))
    seconds = time.monotonic() - began
    print(f"step {step}: {sum(right)} of {len(replies)} right, {norm=:.4f}, {seconds:.1f} s")
