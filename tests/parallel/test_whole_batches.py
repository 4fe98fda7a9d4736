"""Losses and metrics in Python, and samples without seeds: over several processes as in one."""

import pytest
from parallel.processes import alone, torchrun


@pytest.fixture(scope="module", params=[2, 3])
def told(request, tiny_llama_dir):
    """(of one process, of each of several in the order of ranks)."""
    one = alone("cases.py", tiny_llama_dir)
    return one, torchrun(request.param, "cases.py", tiny_llama_dir)


def test_every_rank_tells_the_numbers_of_the_whole_batch(told):
    one, several = told
    for name, case in one.items():
        for of_rank in several:
            assert of_rank[name]["whole"] == case["whole"], name


def test_the_ranks_parts_follow_one_another(told):
    one, several = told
    for name, case in one.items():
        assert [row for of_rank in several for row in of_rank[name]["own"]] == case["own"], name


def test_equal_prompts_without_seeds_draw_apart(told):
    one, _ = told
    for name in ("its own engine", "the model's engine"):
        drawn = one[f"samples of {name}, call 0"]["own"]
        assert len({tuple(tokens) for of_prompt in drawn for tokens in of_prompt}) > 8
