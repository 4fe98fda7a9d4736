"""Training in the workers of a group: the bits of one process."""

import hashlib
from pathlib import Path

SFT = Path(__file__).with_name("sft.py")


def sha256(folder):
    return hashlib.sha256((folder / "last" / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_two_workers_give_the_losses_the_norms_and_the_adapter_of_one_process(
    cluster, tiny_llama_dir, tmp_path
):
    one, two = tmp_path / "one", tmp_path / "two"
    alone = cluster.run([SFT, tiny_llama_dir, one, 10, 1])
    together = cluster.run([SFT, tiny_llama_dir, two, 10, 2])
    assert together.stdout.splitlines()[-1] == alone.stdout.splitlines()[-1]
    assert sha256(two) == sha256(one)
