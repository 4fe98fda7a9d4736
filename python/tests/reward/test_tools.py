"""F1Reward and ToolExploreReward."""

import random
import re
from collections import Counter

import pytest
from turns import ends, score, turn

import twinkle
import twinkle.reward
from twinkle.reward import F1Reward, ToolExploreReward

SEED = 20261122


def f1(answer, truth):
    """By precision and recall, as the paper writes it."""
    left, right = answer.lower().split(), truth.lower().split()
    same = sum(min(n, Counter(right)[word]) for word, n in Counter(left).items())
    if not same:
        return 0.0
    precision, recall = same / len(left), same / len(right)
    return 2 * precision * recall / (precision + recall)


def test_f1_is_that_of_precision_and_recall():
    rng = random.Random(SEED)
    for case in range(100):
        answer, truth = (" ".join(rng.choices("Red green BLUE 4 x".split(), k=rng.randint(1, 6)))
                         for _ in "ab")  # fmt: skip
        got = score(F1Reward(), f"It is \\boxed{{{answer}}}.", truth)
        assert got == pytest.approx(f1(answer, truth)), f"seed {SEED}, case {case}"


@pytest.mark.parametrize(
    ("reply", "truth", "reward"),
    [
        (r"\boxed{The Eiffel Tower!}", "Eiffel tower", 1),
        (r"\boxed{Paris, France}", "Paris", 2 / 3),
        (r"\boxed{London}", "Paris", 0),
        (r"\boxed{the}", "the", 0),
        ("<answer>Paris</answer>", "Paris", 1),
        (r"\boxed{Paris} <answer>London</answer>", "Paris", 1),
        ("Paris", "Paris", 0),
        (r"\boxed{London}", ["Paris", "London"], 1),
        (r"\boxed{London}", '["Paris", "London"]', 1),
        (r"\boxed{北京市}", "北京", 0.8),
        (r"\boxed{}", "Paris", 0),
    ],
)
def test_f1(reply, truth, reward):
    assert score(F1Reward(), reply, truth) == pytest.approx(reward)


def test_several_pairs_are_several_truths():
    row = turn(r"\boxed{London}", "Paris")
    row["user_data"].append(["ground_truth", "London"])
    assert F1Reward()([row]) == [1.0]


@pytest.mark.parametrize("pattern", [r"Answer: (\w+)", re.compile(r"(?<=Answer: )\w+")])
def test_a_pattern_says_where_the_answer_stands_where_there_is_no_box(pattern):
    fn = F1Reward(pattern)
    assert score(fn, "Answer: London. Answer: Paris. <answer>Rome</answer>", "Paris") == 1
    assert score(fn, r"\boxed{Rome} Answer: Paris", "Paris") == 0
    assert score(fn, "<answer>Paris</answer>", "Paris") == 1
    assert score(F1Reward("(a)|b"), "b", "Paris") == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"answer_pattern": "("}, r"answer_pattern is '\(', it must be a regular expression: miss"),
        ({"answer_pattern": 3}, "answer_pattern is 3, it must be a regular expression"),
        ({"f1_threshold": 1.5}, "f1_threshold is 1.5, it must be a number from 0 to 1"),
        ({"f1_threshold": "x"}, "f1_threshold is 'x', it must be a number"),
    ],
)
def test_wrong_settings_are_named(arguments, text):
    with pytest.raises(twinkle.InvalidError, match=text):
        ToolExploreReward(**arguments)


def explored(*results, reply=r"\boxed{Paris}"):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look"}}]}
    steps = [m for text in results for m in (call, {"role": "tool", "content": text})]
    row = turn(reply, "Paris")
    row["messages"][1:1] = steps
    return row


@pytest.mark.parametrize(
    ("row", "reward"),
    [
        (explored("It is Paris."), 1),
        (explored("Error: no such page", [{"type": "text", "text": "Paris"}]), 1),
        (explored(*["It is Paris."] * 5), 1),
        (explored(), 0),
        (explored(""), 0),
        (explored(None), 0),
        (explored("ERROR: no such page"), 0),
        (explored("It is Paris.", reply=r"\boxed{London}"), 0),
        (explored("It is Paris.", reply=""), 0),
        (explored("It is Paris.", reply=r"\boxed{Paris in France and not London}"), 0),
    ],
)
def test_a_tool_must_have_been_of_use_and_the_answer_good(row, reward):
    assert ToolExploreReward()([row]) == [reward]


def test_the_threshold_is_reached_by_an_equal_f1():
    row = explored("It is Paris.", reply=r"\boxed{Paris or London}")  # 2 of 4 words
    assert ToolExploreReward(0.5)([row]) == [1.0] and ToolExploreReward(0.51)([row]) == [0.0]


def test_tools_of_earlier_turns_do_not_count():
    row = explored("It is Paris.")
    row["messages"].insert(-1, {"role": "user", "content": "Sure?"})
    assert ToolExploreReward()([row]) == [0.0]


LONG = [
    "a", " ", "\n", "\\boxed{", "{", "}", "\\", "<think>", "</think>", "<answer>", "</answer>",
    "####", "#### 7", "Step 1", "第", "=", "\\text{", "\\boxed{1}", "- ", "第一步\n", "，", "9,",
    "\\boxed ", "1 ", "<answer>1</answer>", "\t#*_>-",
]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in twinkle.reward.__all__ if n != "Reward"])
def test_long_replies_end_and_raise_nothing(name):
    fn = getattr(twinkle.reward, name)()
    key = "solution" if name == "MathReward" else "ground_truth"
    rng = random.Random(SEED)
    for piece in [*LONG, None]:
        text = (
            "".join(rng.choices(LONG, k=10**4 * 4))
            if piece is None
            else piece * (2 * 10**5 // len(piece))
        )
        with ends():
            got = fn([turn(text, "5", key)])
        assert 0 <= got[0] <= 1, (name, piece)
