"""transformers and peft read our files, and we read theirs: with equal scores."""

import json
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
from parity import models, ours, reference
from parity.families import recipes as families
from parity.test_gradients import adapted

from twinkle.engine import Engine

SOME = range(0, models.COUNT, 5)
ADAMW = {"optimizer": "AdamW", "options": json.dumps({"lr": 0.01})}


def check(made, model, case, atol=1e-4):
    logps, entropies = ours.scores(made, case.sequences, entropy=True)
    for i, sequence in enumerate(case.sequences):
        with torch.no_grad():
            expected = reference.scores(model, sequence)
        torch.testing.assert_close(logps[i], expected[0], rtol=0, atol=atol)
        torch.testing.assert_close(entropies[i], expected[1], rtol=0, atol=atol)


def learn(made, case, steps=2):
    for _ in range(steps):
        ours.backward(made, case.sequences)
        made.step(tenant=ours.TENANT, **ADAMW, max_grad_norm=1.0).result()


@pytest.mark.parametrize("index", SOME, ids=models.name_of)
def test_an_adapter_that_learned_here_scores_the_same_in_peft(index, tmp_path):
    case = models.case(index)
    adapted(case, tmp_path / "theirs")
    made = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    check(made, peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path / "mine"), case)


@pytest.mark.parametrize("index", SOME, ids=models.name_of)
def test_an_adapter_of_peft_scores_the_same_here_and_comes_back_bit_for_bit(index, tmp_path):
    case = models.case(index)
    model = adapted(case, tmp_path / "theirs")
    made = ours.engine(case.directory, directory=str(tmp_path / "theirs"))
    check(made, model, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path / "mine")
    mine, theirs = (peft.get_peft_model_state_dict(m) for m in (back, model))
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(mine[name], value), name


@pytest.mark.parametrize("index", SOME, ids=models.name_of)
def test_a_model_that_learned_here_scores_the_same_in_transformers(index, tmp_path):
    case = models.case(index)
    made = ours.engine(case.directory)
    untrained, _ = ours.scores(made, case.sequences)
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "full")).result()
    check(made, models.load_reference(str(tmp_path / "full")), case)
    trained, _ = ours.scores(made, case.sequences)
    assert (trained[-1] - untrained[-1]).abs().max() > 0.01


def saved_in_several_files(case, size, folder):
    """Checks that each file is below the size, or one tensor; where they are."""
    tenant = Engine(case.directory, mixed_precision="no").tenant("me", None)
    folder = Path(tenant.save(folder, max_shard_size=size).result())
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert files == sorted(set(places.values())) and len(files) > 1
    limit = {1: 1, "2.5KB": 2500, "20KiB": 20480}[size]
    for file in files:
        tensors = safetensors.torch.load_file(folder / file)
        assert set(tensors) == {name for name, place in places.items() if place == file}
        assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= limit
    return folder, places


@pytest.mark.parametrize("size", [1, "2.5KB", "20KiB"])
@pytest.mark.parametrize("index", models.ONE_OF_EACH[:4], ids=models.name_of)
def test_a_model_saved_in_several_files_scores_the_same_in_transformers_and_here(
    index, size, tmp_path
):
    case = models.case(index)
    folder, _ = saved_in_several_files(case, size, tmp_path / "full")
    check(ours.engine(str(folder)), models.load_reference(str(folder)), case)
    check(ours.engine(str(folder)), case.fresh_reference(), case)


# Experts one by one, and besides a layer or more that no model reads; stacks as a whole.
STACKED = ["qwen3_moe", "glm4_moe", "qwen3_next", "qwen3_5_moe", "gpt_oss"]


@pytest.mark.parametrize("size", [1, "2.5KB", "20KiB"])
@pytest.mark.parametrize("name", STACKED)
def test_experts_and_what_is_kept_unread_are_saved_in_several_files_as_they_came(
    name, size, tmp_path
):
    case = families.case(name)
    folder, places = saved_in_several_files(case, size, tmp_path / "full")
    before = safetensors.torch.load_file(Path(case.directory) / "model.safetensors")
    assert places.keys() == before.keys() and set(families.FAMILIES[name].more) <= before.keys()
    for key, place in places.items():
        assert torch.equal(safetensors.torch.load_file(folder / place)[key], before[key]), key
    check(ours.engine(str(folder)), case.reference, case)
    if not families.FAMILIES[name].alien:
        check(ours.engine(str(folder)), models.load_reference(str(folder)), case)
