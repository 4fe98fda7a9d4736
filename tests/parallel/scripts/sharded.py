"""Run by each process of test_sharded: MODEL OUT, with DP and FSDP in the environment. Tells
its data rank, its losses and norms, and what it has sampled."""

import json
import os
import sys
from pathlib import Path

from parallel.batches import batch_of, sampled, trained

import twinkle
from twinkle import DeviceMesh
from twinkle.model import TransformersModel

model_dir, out = sys.argv[1:3]
mesh = DeviceMesh.from_sizes(
    dp_size=int(os.environ.get("DP", "1")), fsdp_size=int(os.environ.get("FSDP", "1"))
)
twinkle.initialize(mode="local", global_device_mesh=mesh)
model = TransformersModel(
    model_id=model_dir, fsdp_config=json.loads(os.environ.get("FSDP_CONFIG", "{}"))
)
told = trained(model, mesh, map(batch_of, range(6)), r=8, accumulated=2)
prompts = [[5 + i, 9, 11, 40 - i] for i in range(6)]
texts = sampled(model, mesh, prompts, max_tokens=8)
model.save("last", output_dir=out)
Path(os.environ["TOLD"], os.environ.get("RANK", "0")).write_text(
    json.dumps([mesh.data_rank or 0, told, texts], default=float)
)
