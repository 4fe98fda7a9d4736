"""Training in the workers of a group: the bits of one process."""

import hashlib
from pathlib import Path

import pytest
import torch
from parallel.processes import printed_by

from twinkle import InvalidError, LoraConfig, TransformersModel

SFT = Path(__file__).with_name("sft.py")
STEPS = 4  # two of them change the weights


def sha256(folder):
    return hashlib.sha256((folder / "last" / "adapter_model.safetensors").read_bytes()).hexdigest()


def test_two_workers_give_the_losses_the_norms_and_the_adapter_of_one_process(
    cluster, tiny_llama_dir, tmp_path
):
    one, two = tmp_path / "one", tmp_path / "two"
    alone = printed_by(SFT, tiny_llama_dir, one, STEPS, 1)
    together = cluster.run([SFT, tiny_llama_dir, two, STEPS, 2])
    assert together.stdout.splitlines()[-1] == alone.splitlines()[-1]
    assert sha256(two) == sha256(one)


@pytest.fixture(scope="module")
def two(driver):
    """This process is a driver with a group of two workers."""
    with driver(two=2):
        yield


def test_a_row_that_python_refuses_on_one_rank_is_told_and_never_mixed_with_the_next(
    two, tiny_llama_dir
):
    rows = [{"input_ids": [8, 6, 7 + i], "labels": [6, 7 + i, -100]} for i in range(4)]
    spoilt = [{**row, "input_ids": [5, 6, 7]} for row in rows[:3]] + [{"input_ids": [[1], [2]]}]

    def model_at(**place):
        model = TransformersModel(model_id=tiny_llama_dir, **place)
        model.add_adapter_to_model("default", LoraConfig(r=4))
        return model

    alone = model_at().forward_backward(inputs=rows)["loss"]
    model = model_at(remote_group="two")
    with pytest.raises(InvalidError, match=r"input_ids of inputs\[1\] has shape"):
        model.forward_backward(inputs=spoilt)()
    assert model.forward_backward(inputs=rows)()["loss"] == alone


def test_a_loss_in_python_gets_what_the_script_gives_whatever_its_length(two, tiny_llama_dir):
    """Two workers of two rows each: lists as long as a worker's rows, or as all, and equal ones."""
    rows = [{"input_ids": [8, 6, 7 + i], "labels": [6, 7 + i, -100]} for i in range(4)]

    def loss_of(names):
        def weighted(inputs, outputs, coef=(1.0,), weights=None):
            each = outputs["logps"].sum(-1)
            each = each if weights is None else each * torch.tensor(weights)
            each = each * 3 if isinstance(weights, tuple) else each
            return -sum(c * 10**i for i, c in enumerate(coef)) * each.sum()

        if names != "not told":
            weighted.row_arguments = names
        return weighted

    def losses(**place):
        model, out = TransformersModel(model_id=tiny_llama_dir, **place), []
        model.add_adapter_to_model("default", LoraConfig(r=4))
        for names in ("not told", (), ("weights",)):
            model.set_loss(loss_of(names))
            for given in (
                {"coef": [0.5, 2.0]},
                {"coef": [0.5, 2.0, 3.0, 4.0]},
                {"weights": [1.0] * 4},
                {"weights": [1.0, 0.5, 2.0, 0.1], "coef": [0.5, 2.0]},
                {"weights": (1.0, 0.5, 2.0, 0.1)},
            ):
                out.append(float(model.forward_backward(inputs=rows, **given)["loss"]))
                model.forward(inputs=rows)
                out.append(model.calculate_loss(**given))
        return model, out

    _, alone = losses()
    model, of_two = losses(remote_group="two")
    assert of_two == alone
    with pytest.raises(InvalidError, match=r"weights of .* has 3 entries for 4 rows, but its"):
        model.forward_backward(inputs=rows, weights=[1.0, 2.0, 3.0])()
