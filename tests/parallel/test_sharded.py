"""Processes that share the base, by fsdp_size and dp_size, against one: the same bits."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("sharded_script.py")


def run(command, **more):
    paths = os.pathsep.join(map(str, sys.path))
    environment = {**os.environ, "TWINKLE_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=environment | {"PYTHONPATH": paths, "FSDP_CONFIG": "{}"} | more,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return [line[1:] for line in sorted(lines)]


def sha256(folder):
    return hashlib.sha256((folder / "last" / "adapter_model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("dp", "fsdp", "config"),
    [
        (1, 2, {}),
        (1, 2, {"gathered_bytes": 100_000}),
        (2, 2, {"sharding_strategy": "HYBRID_SHARD"}),
    ],
)
def test_ranks_that_share_the_base_give_every_process_the_bits_of_one(
    dp, fsdp, config, tiny_llama_dir, tmp_path
):
    one, several = tmp_path / "one", tmp_path / "several"
    [[told, sampled]] = run([sys.executable, str(SCRIPT), str(tiny_llama_dir), str(one)])
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={dp * fsdp}"]
    ranks = run(
        [*torchrun, "--standalone", str(SCRIPT), str(tiny_llama_dir), str(several)],
        DP=str(dp),
        FSDP=str(fsdp),
        FSDP_CONFIG=json.dumps(config),
    )
    assert [rank[0] for rank in ranks] == [told] * (dp * fsdp)
    assert [reply for rank in ranks for reply in rank[1]] == sampled
    assert sha256(several) == sha256(one)
