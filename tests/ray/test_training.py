"""Training in the workers of a group: the bits of one process."""

import hashlib
from pathlib import Path

import pytest

from twinkle import InvalidError, LoraConfig, TransformersModel

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


def test_a_row_that_python_refuses_on_one_rank_is_told_and_never_mixed_with_the_next(
    driver, tiny_llama_dir
):
    rows = [{"input_ids": [8, 6, 7 + i], "labels": [6, 7 + i, -100]} for i in range(4)]
    spoilt = [{**row, "input_ids": [5, 6, 7]} for row in rows[:3]] + [{"input_ids": [[1], [2]]}]

    def model_at(**place):
        model = TransformersModel(model_id=tiny_llama_dir, **place)
        model.add_adapter_to_model("default", LoraConfig(r=4))
        return model

    alone = model_at().forward_backward(inputs=rows)["loss"]
    with driver(two=2):
        model = model_at(remote_group="two")
        with pytest.raises(InvalidError, match=r"input_ids of inputs\[1\] has shape"):
            model.forward_backward(inputs=spoilt)()
        assert model.forward_backward(inputs=rows)()["loss"] == alone
