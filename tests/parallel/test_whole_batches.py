"""Losses and metrics in Python, and samples without seeds: over several processes as in one."""

import pytest
from parallel.processes import alone, together


@pytest.fixture(scope="module")
def one(tiny_llama_dir, tmp_path_factory):
    return alone("cases.py", tiny_llama_dir, tmp_path_factory.mktemp("one"))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((2, {}), marks=pytest.mark.soak),  # CI has three and four
        (3, {}),
        (4, {"OTHER_MESH": "fsdp 2 x dp 2"}),
    ],
    ids=["2", "3", "4 of two meshes"],
)
def told(request, one, tiny_llama_dir, tmp_path_factory):
    """(of one process, of each of several in the order of ranks). Two meshes: the script's has the
    same processes in another order than the model's."""
    size, more = request.param
    return one, together(size, "cases.py", tiny_llama_dir, tmp_path_factory.mktemp("saved"), **more)


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


def test_a_call_is_agreed_on_once(told):
    for of_rank in told[1]:
        assert of_rank["exchanges"]["of"] == {
            "forward": ["a batch", "its scores"],  # scores come when it has been computed
            "calculate_loss": ["its loss"],
            "backward": ["its backward", "its scores"],
            "clip_grad_norm": ["its clip_grad_norm"],
            "step": ["its step"],
            "zero_grad": ["its zero_grad"],
            "forward_backward": ["a batch", "its scores"],
            "clip_grad_and_step": ["its clip_grad_and_step"],
            "save": ["its save"],
            "load": ["its load"],
            "get_state_dict": ["its get_state_dict"],
        }


def test_a_rank_tells_the_others_its_own_rows_and_their_scores_once(told):
    for of_rank in told[1]:
        own, lengths = of_rank["exchanges"]["own bytes"], of_rank["exchanges"]["bytes"]
        for step, rows in (("forward", "a batch"), ("forward_backward", "a batch that learns")):
            of_batch, of_scores = lengths[step]
            assert of_batch == own[rows]
            # NumPy names arrays that it has not made itself otherwise.
            assert own["its scores"] <= of_scores <= own["its scores"] + 16
        assert lengths["step"] == [own["its step"]]
        for step in ("clip_grad_norm", "zero_grad", "clip_grad_and_step", "save", "load"):
            (length,) = lengths[step]
            assert length <= 248, "more than one frame"
