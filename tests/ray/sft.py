"""Training on the ranks of a group, or, without one, in this process: MODEL OUT STEPS RANKS. Prints
losses and norms as JSON."""

import json
import sys

from parallel.batches import batch_of

import twinkle
from twinkle import DeviceGroup, DeviceMesh, LoraConfig
from twinkle.model import TransformersModel

model_dir, out, steps, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
place = {}
if ranks > 1:
    groups = [DeviceGroup("default", ranks=ranks, device_type="cuda")]
    mesh = DeviceMesh.from_sizes(dp_size=ranks)
    twinkle.initialize(mode="ray", groups=groups, global_device_mesh=mesh)
    place = {"remote_group": "default"}


model = TransformersModel(model_id=model_dir, **place)
config = LoraConfig(r=8, lora_alpha=24, target_modules="all-linear", lora_dropout=0.1)
model.add_adapter_to_model("default", config, gradient_accumulation_steps=2)
model.set_optimizer("AdamW", lr=1e-3)
told = []
for step in range(steps):
    outputs = model.forward_backward(inputs=batch_of(step))
    model.clip_grad_and_step()
    metric = model.calculate_metric(is_training=True)
    logps = outputs["logps"]
    told.append([metric["loss"], metric.get("grad_norm"), outputs["num_tokens"], outputs["loss"]])
    told.append([list(logps.shape), logps.sum().item()])
model.save("last", output_dir=out)
print(json.dumps(told))
