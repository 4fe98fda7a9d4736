"""The reading of trajectories that all rewards share, and its refusals."""

import subprocess
import sys

import pytest
from turns import turn

import twinkle
import twinkle.reward
from twinkle.core import core
from twinkle.reward import (
    CoTReward,
    F1Reward,
    FormatReward,
    GSM8KAccuracyReward,
    GSM8KFormatReward,
    MathReward,
    Reward,
)

REWARDS = [name for name in twinkle.reward.__all__ if name != "Reward"]
COMPARING = [name for name in REWARDS if not name.endswith(("FormatReward", "QualityReward"))
             and name != "CoTReward"]  # fmt: skip
SOLVED = r"<think>4</think><answer>\boxed{4}</answer>"


def made(name):
    return twinkle.construct_class(name, Reward, twinkle.reward)


def key_of(name):
    return "solution" if name == "MathReward" else "ground_truth"


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_is_found_by_name_and_gives_a_float_for_each_reply_in_order(name):
    rows = [turn(text, "4", key_of(name)) for text in ("", SOLVED, "  \n", SOLVED)]
    rewards = made(name)(rows)
    assert [type(reward) for reward in rewards] == [float] * 4
    assert rewards[0] == rewards[2] == 0 and rewards[1] == rewards[3]
    assert 0 <= rewards[1] <= 1 and made(name)([]) == []


def test_importing_them_loads_no_heavy_package():
    code = (
        "import sys, twinkle.reward, twinkle.advantage; heavy = {'torch', 'numpy', 'sympy'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("data", [None, [], {}, [["other", "4"]], [["ground_truth", ""]],
                                  [["ground_truth", None]], [["solution", " "]]])  # fmt: skip
@pytest.mark.parametrize("name", COMPARING)
def test_a_missing_truth_is_named_and_no_zero(name, data):
    rows = [turn(SOLVED, "4", key_of(name)), {**turn(SOLVED), "user_data": data}]
    text = f"reward: trajectory 1 has no '{key_of(name)}' in user_data, .*{name}.*filter"
    with pytest.raises(twinkle.InvalidError, match=text):
        made(name)(rows)
    del rows[1]["user_data"]
    with pytest.raises(twinkle.InvalidError, match=text):
        made(name)(rows)


@pytest.mark.parametrize(
    ("trajectories", "text"),
    [
        (turn("4"), "trajectories is {.*, it must be a list of Trajectories"),
        ("4", "trajectories is '4', it must be a list"),
        ([turn("4"), "4"], "trajectory 1 is '4', it must be a Trajectory"),
        ([{}], "trajectory 0: messages is None, it must be a list of messages"),
        ([{"messages": []}], r"trajectory 0: messages is \[\]"),
        ([{"messages": ["4"]}], r"trajectory 0: messages is \['4'\]"),
        ([{"messages": turn("4")["messages"][:1]}], "trajectory 0 has no reply: .* 'user'"),
        ([{"messages": turn("4")["messages"][::-1]}], "trajectory 0 has no reply: .* 'user'"),
        ([{"messages": [{"role": "assistant", "content": 4}]}], "content is 4, it must be a text"),
    ],
)
@pytest.mark.parametrize("name", REWARDS)
def test_what_is_no_trajectory_is_named(name, trajectories, text):
    with pytest.raises(twinkle.InvalidError, match=text):
        made(name)(trajectories)


def test_user_data_of_another_form_and_unknown_arguments_are_named():
    row = {**turn("4"), "user_data": ["ground_truth", "4"]}
    with pytest.raises(twinkle.InvalidError, match=r"trajectory 0: user_data is \['ground_truth"):
        GSM8KAccuracyReward()([row])
    with pytest.raises(twinkle.InvalidError, match="unknown argument 'scale'"):
        GSM8KAccuracyReward()([turn("4", "4")], scale=2)
    with pytest.raises(twinkle.InvalidError, match="ground_truth_key is 3, it must be a text"):
        MathReward(3)


@pytest.mark.parametrize("truth", ["4", '"4"', 4, 4.0, '["4"]', ["4"], [4]])
def test_a_truth_may_be_text_json_text_a_number_or_a_list(truth):
    assert GSM8KAccuracyReward()([turn("#### 4", truth)]) == [1.0]
    row = {**turn("#### 4"), "user_data": {"ground_truth": truth}}
    assert GSM8KAccuracyReward()([row]) == [1.0]


def test_an_interval_as_truth_stays_text_though_it_is_json():
    assert MathReward("t")([turn(r"\boxed{[1,2]}", "[1, 2]", "t")]) == [1.0]
    assert MathReward("t")([turn(r"\boxed{1, 2}", "[1, 2]", "t")]) == [0.0]


def test_the_last_message_of_the_assistant_is_the_reply_and_parts_are_its_text():
    row = turn("#### 4", "4")
    row["messages"] += [{"role": "tool", "content": "ok"}]
    assert GSM8KAccuracyReward()([row]) == [1.0]
    parts = [{"type": "text", "text": "####"}, {"type": "image", "image": "x"}, " 5"]
    row["messages"] += [{"role": "assistant", "content": parts}]
    assert GSM8KAccuracyReward()([row]) == [0.0]
    row["user_data"][0][1] = "5"
    assert GSM8KAccuracyReward()([row]) == [1.0]
    row["messages"][-1]["content"] = None
    assert GSM8KAccuracyReward()([row]) == [0.0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{4}", ["4"]),
        (r"\boxed{\frac{1}{2}} or \boxed {x}", [r"\frac{1}{2}", "x"]),
        (r"\boxed{\boxed{4}}", [r"\boxed{4}"]),
        (r"\boxed{\{1\}}", [r"\{1\}"]),
        (r"{ \boxed{4} } \boxed{5", ["4"]),
        (r"\boxed{5 \boxed{4} ", ["4"]),
        ("} boxed{4}", []),
        (r"\\\boxed{4}", ["4"]),
    ],
)
def test_boxes_are_those_that_are_closed_the_outer_ones(text, found):
    read = core().Turn
    assert [text[slice(*box)] for box in read.boxes(text)] == found
    assert read.last_box(text) == (found[-1] if found else None)


def test_between_reads_the_last_pair_of_tags():
    between = core().Turn.between
    assert between("<a>1</a><a> 2 </a> <a>3", "a") == "2"
    assert between("</a><a>", "a") is None and between("<a>", "a") is None


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>so</think><answer>4</answer>", 1),
        ("\n<think>\nso\n</think>\n\n<answer>\n4\n</answer>\n", 1),
        ("<think>in <answer>?</think><answer>4</answer>", 1),
        ("<think>so</think>", 0),
        ("<answer>4</answer>", 0),
        ("so</think><answer>4</answer>", 0),
        ("<answer>4</answer><think>so</think>", 0),
        ("Well: <think>so</think><answer>4</answer>", 0),
        ("<think>so</think>well<answer>4</answer>", 0),
        ("<think>so</think><answer>4</answer> or 5", 0),
        ("<think>so</think><answer>4</answer><answer>5</answer>", 0),
        ("<think>so</think><answer><answer>4</answer>", 0),
        ("<think> </think><answer>4</answer>", 0),
        ("<think>so</think><answer> </answer>", 0),
        ("<think>so</think><answer>4", 0),
        ("4", 0),
    ],
)
def test_format(text, reward):
    assert FormatReward()([turn(text)]) == [reward]


def test_a_thought_that_was_taken_out_of_the_reply_counts_as_thought():
    row = turn("<answer>4</answer>")
    row["messages"][-1]["reasoning_content"] = "so"
    assert FormatReward()([row]) == CoTReward()([row]) == [1.0]
    row["messages"][-1]["reasoning_content"] = " "
    assert FormatReward()([row]) == CoTReward()([row]) == [0.0]


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>so</think>4", 1),
        ("so</think>4", 1),
        ("<think>so</think>", 0),
        ("<think> </think>4", 0),
        ("Step 1: a\nStep 2: b\n4", 1),
        ("**Step 1** a\n- step 2. b", 1),
        ("第一步：a\n第二步：b", 1),
        ("Step 1: a\nStep 1: b", 0),
        ("as in step 1 and step 2", 0),
        ("4", 0),
    ],
)
def test_chain_of_thought(text, reward):
    assert CoTReward()([turn(text)]) == [reward]


def test_steps_of_all_turns_since_the_users_last_message_count():
    row = turn("Step 1: look it up")
    row["messages"] += [{"role": "tool", "content": "4"},
                        {"role": "assistant", "content": "Step 2: 4"}]  # fmt: skip
    assert CoTReward()([row]) == [1.0]
    row["messages"][2:2] = [{"role": "user", "content": "and?"}]
    assert CoTReward()([row]) == [0.0]


def test_format_rewards_need_no_truth():
    assert GSM8KFormatReward()([turn("#### 4")]) == [1.0]
    assert F1Reward()([turn("", "4")]) == [0.0]
