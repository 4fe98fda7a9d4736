"""The script of each process of test_sync.py: ROLE MODEL KIND RANK SIZE SENDERS STEPS. The model's
first rank prints the address when it is told to, the others read it. KIND: adapter, full, or parts:
an adapter of ranks that share the base. The last line has the samples and facts of each sync."""

import json
import os
import signal
import sys

from parallel.batches import batch_of

import twinkle
from twinkle import DeviceMesh, LoraConfig
from twinkle.checkpoint_engine import gloo
from twinkle.data_format import SamplingParams
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

# A shell that starts the tests with `&` has them, and so this, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
role, model_dir, kind = sys.argv[1:4]
rank, size, senders, steps = map(int, sys.argv[4:8])
axis = "fsdp_size" if kind == "parts" else "dp_size"
mesh = DeviceMesh.from_sizes(**{axis: int(os.environ.get("WORLD_SIZE", "1"))})
twinkle.initialize(mode="local", global_device_mesh=mesh)


def sampled(sampler):
    params = SamplingParams(max_tokens=12, temperature=1.0, logprobs=1, seed=5)
    prompts = [{"input_ids": list(range(3, 60))}, {"input_ids": [7, 8, 9]}]
    replies = [r.sequences[0] for r in sampler.sample(prompts, params)]
    return [[list(r.tokens), [pair[0][1] for pair in r.logprobs]] for r in replies]


if role == "model":
    member = TransformersModel(model_id=model_dir)
    if kind != "full":
        config = LoraConfig(r=8, lora_alpha=24, target_modules="all-linear")
        member.add_adapter_to_model("default", config)
    member.set_optimizer("AdamW", lr=1e-2)
    sampler = TorchSampler(model=member)
else:
    member = sampler = TorchSampler(model_id=model_dir)

made = gloo.process_group


def process_group(name, prefix, store, place):
    """A group whose sockets may have another timeout than the watch."""
    seconds = os.environ.get("SOCKETS_TIMEOUT", place[2])
    return made(name, prefix, store, (*place[:2], float(seconds)))


gloo.process_group = process_group
options = {"bucket_bytes": int(os.environ.get("BUCKET_BYTES", "50000"))}
print("ready", flush=True)
if rank == 0:
    sys.stdin.readline()
    address = member.prepare_checkpoint_engine(**options)
    print(address, flush=True)
else:
    address = sys.stdin.readline().strip()
member.init_checkpoint_process_group(address, rank, size, senders, **options)

told, sent = [], []
for step in range(steps):
    if step == 1 and os.environ.get("COMES_WHEN_TOLD") == str(rank):
        sys.stdin.readline()
    if step == 1 and os.environ.get("LEAVES") == str(rank):
        sys.exit(0)
    if role == "model":
        batch = batch_of(step, rows=4)
        member.forward_backward(inputs=batch[mesh.get_slice(len(batch))])
        member.clip_grad_and_step()
        sent.append(member.send_weights())
    else:
        sent.append(member.receive_weights())
        sampler.reset_prefix_cache()
    told.append(sampled(sampler))
    print(f"step {step}", flush=True)
print(json.dumps({"told": told, "sent": sent}), flush=True)
member.finalize_checkpoint_engine()
