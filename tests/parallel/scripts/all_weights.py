"""The script of each process of test_all_weights.py: MODEL OUT [FOLDER OUT FOLDER ...], with DP and
FSDP in the environment: four batches, from scratch or after what is saved in the folder, for each
OUT. Tells its data rank, losses and norms, and what it has sampled, for each of them."""

import itertools
import json
import os
import sys
from pathlib import Path

from parallel.batches import batch_of

import twinkle
from twinkle import DeviceMesh
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler


def train(mesh, model_dir, out, folder):
    """Its data rank, losses and norms, and what it has sampled; and the model, which stays."""
    model = TransformersModel(model_id=model_dir, mixed_precision="no")
    model.set_optimizer("AdamW", lr=1e-3, eps=1e-5, weight_decay=0.01)
    begin = 0
    if folder:
        model.load("last", output_dir=folder, load_optimizer=True)
        begin = 4
    told = []
    for step in range(begin, begin + 4):
        batch = batch_of(step)
        model.forward_backward(inputs=batch[mesh.get_slice(len(batch))])
        model.clip_grad_and_step(gradient_accumulation_steps=2)
        metric = model.calculate_metric(is_training=True)
        told.append([metric["loss"], metric.get("grad_norm")])
    prompts = [{"input_ids": [5 + i, 9, 11, 40 - i]} for i in range(8)]
    replies = TorchSampler(model=model).sample(
        prompts[mesh.get_slice(len(prompts))], {"max_tokens": 4, "temperature": 0}
    )
    sampled = [list(map(int, s.tokens)) for r in replies for s in r.sequences]
    model.save("last", output_dir=out, save_optimizer=True)
    return [mesh.data_rank or 0, told, sampled], model


def main():
    model_dir, *places = sys.argv[1:]
    mesh = DeviceMesh.from_sizes(
        dp_size=int(os.environ.get("DP", "1")), fsdp_size=int(os.environ.get("FSDP", "1"))
    )
    twinkle.initialize(mode="local", global_device_mesh=mesh)
    pairs = itertools.zip_longest(places[::2], places[1::2])
    ran = [train(mesh, model_dir, out, folder) for out, folder in pairs]
    Path(os.environ["TOLD"], os.environ.get("RANK", "0")).write_text(
        json.dumps([told for told, _ in ran], default=float)
    )


if __name__ == "__main__":
    main()
