"""Run by each process of test_sharded on several models: OUT MODEL... Trains an adapter of each,
with the processes along dp and, where there are several, once more along fsdp. Tells its data rank
and, by model, losses and norms, and what it has sampled, of each of these meshes; saves the adapter
in OUT/MESH/NUMBER."""

import json
import os
import sys
from pathlib import Path

import numpy as np
from parallel.batches import sampled, trained

import twinkle
from twinkle import DeviceMesh
from twinkle.model import TransformersModel

LENGTHS = (5, 70, 33, 90)  # beyond every window, and on both sides of longrope's line


def batch_of(step):
    rng = np.random.default_rng(step)
    rows = [rng.integers(3, 120, length + step) for length in LENGTHS]
    return [{"input_ids": ids, "labels": np.append(ids[1:], -100)} for ids in rows]


def told_by(folder, mesh, out):
    model = TransformersModel(model_id=folder, device_mesh=mesh)
    told = trained(model, mesh, map(batch_of, range(3)), r=4)
    prompts = [list(range(5, 5 + length)) for length in LENGTHS]
    texts = sampled(model, mesh, prompts, max_tokens=6)
    model.save("last", output_dir=out)
    return [told, texts]


def main():
    size = int(os.environ.get("WORLD_SIZE", "1"))
    meshes = {"dp": DeviceMesh.from_sizes(dp_size=size)}
    if size > 1:
        meshes["fsdp"] = DeviceMesh.from_sizes(fsdp_size=size)
    twinkle.initialize(mode="local", global_device_mesh=meshes["dp"])
    out, *folders = sys.argv[1:]
    told = {name: [] for name in meshes}
    for name, mesh in meshes.items():
        for i, folder in enumerate(folders):
            told[name].append(told_by(folder, mesh, Path(out, name, str(i))))
    ranks = {name: mesh.data_rank or 0 for name, mesh in meshes.items()}
    Path(os.environ["TOLD"], os.environ.get("RANK", "0")).write_text(
        json.dumps([ranks, told], default=float)
    )


if __name__ == "__main__":
    main()
