"""What each process of test_sharded runs: MODEL OUT, with DP and FSDP in the environment. Tells
its data rank, its losses and norms, and what it has sampled."""

import json
import os
import sys
from pathlib import Path

from parallel.batches import batch_of

import twinkle
from twinkle import DeviceMesh, LoraConfig
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

model_dir, out = sys.argv[1:3]
mesh = DeviceMesh.from_sizes(
    dp_size=int(os.environ.get("DP", "1")), fsdp_size=int(os.environ.get("FSDP", "1"))
)
twinkle.initialize(mode="local", global_device_mesh=mesh)


model = TransformersModel(
    model_id=model_dir, fsdp_config=json.loads(os.environ.get("FSDP_CONFIG", "{}"))
)
config = LoraConfig(r=8, lora_alpha=24, target_modules="all-linear", lora_dropout=0.1)
model.add_adapter_to_model("default", config, gradient_accumulation_steps=2)
model.set_optimizer("AdamW", lr=1e-3)
told = []
for step in range(6):
    batch = batch_of(step)
    model.forward_backward(inputs=batch[mesh.get_slice(len(batch))])
    model.clip_grad_and_step()
    metric = model.calculate_metric(is_training=True)
    told.append([metric["loss"], metric.get("grad_norm")])
prompts = [{"input_ids": [5 + i, 9, 11, 40 - i]} for i in range(6)]
replies = TorchSampler(model=model).sample(
    prompts[mesh.get_slice(len(prompts))],
    {"max_tokens": 8, "seed": 3, "logprobs": 1},
    adapter_name="default",
)
sampled = [[list(map(int, s.tokens)), s.logprobs] for r in replies for s in r.sequences]
model.save("last", output_dir=out)
Path(os.environ["TOLD"], os.environ.get("RANK", "0")).write_text(
    json.dumps([mesh.data_rank or 0, told, sampled], default=float)
)
