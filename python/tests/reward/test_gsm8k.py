"""Rewards of GSM8K, against the data set's own answers and a table."""

import json
import os
from pathlib import Path

import pytest
from turns import score, turn

from twinkle.reward import GSM8KAccuracyReward, GSM8KFormatReward, MathReward

accuracy, form = GSM8KAccuracyReward(), GSM8KFormatReward()


@pytest.fixture(scope="module")
def gold():
    file = Path(os.environ.get("TWINKLE_TEST_DATA", ""), "gsm8k_train.jsonl")
    if not file.is_file():
        pytest.skip("TWINKLE_TEST_DATA has no gsm8k_train.jsonl")
    return [json.loads(line)["answer"] for line in file.read_text().splitlines()]


def test_every_gold_answer_gets_1_and_one_with_another_number_0(gold):
    truths = [answer.rpartition("#### ")[2].replace(",", "") for answer in gold]
    assert len(gold) == 7473
    right = [turn(answer, truth) for answer, truth in zip(gold, truths, strict=True)]
    assert set(accuracy(right)) == {1.0} == set(form(right))
    changed = [str(int(truth) + 1) for truth in truths]
    wrong = [turn(answer, truth) for answer, truth in zip(gold, changed, strict=True)]
    assert set(accuracy(wrong)) == {0.0}
    boxed = [turn(f"\\boxed{{{truth}}}", truth) for truth in truths]
    assert set(accuracy(boxed)) == {1.0} == set(MathReward("ground_truth")(boxed[::10]))
    wrong = [turn(f"\\boxed{{{other}}}", t) for other, t in zip(changed, truths, strict=True)]
    assert set(accuracy(wrong)) == {0.0} == set(MathReward("ground_truth")(wrong[::10]))


@pytest.mark.parametrize(
    ("reply", "truth", "right", "formed"),
    [
        ("#### 72", "72", 1, 1),
        ("####72", "72", 1, 1),
        ("#### 1,234", "1234", 1, 1),
        (r"\boxed{1,234}", "1,234", 1, 1),
        ("#### $72.00", "72", 1, 1),
        (r"\boxed{\$72}", "72", 1, 1),
        ("#### 72 clips.", "72", 1, 1),
        (r"\boxed{$5$}", "5", 1, 1),
        (r"\boxed{\$5\$}", "5", 1, 1),
        ("#### 5$", "5", 1, 1),
        ("#### $5$ dollars", "5", 1, 1),
        ("#### **5**", "5", 1, 1),
        ("#### **5** clips.", "5", 1, 1),
        ("#### **5 clips**.", "5", 1, 1),
        ("#### **$1,234**", "1234", 1, 1),
        ("**#### 5**", "5", 1, 1),
        ("#### 5", "**$5**", 1, 1),
        ("#### 5*3", "53", 0, 0),
        ("#### 5**3", "53", 0, 0),
        (r"\boxed{5$6}", "56", 0, 1),
        ("#### **yes**", "yes", 1, 0),
        (r"\boxed{72\text{ clips}}", "72", 1, 1),
        ("#### 72\nShe sold them.", "72", 1, 1),
        ("#### 1\n#### 72", "72", 1, 1),
        (r"\boxed{1} and \boxed{72}", "72", 1, 1),
        (r"\boxed{72} #### 1", "72", 1, 1),
        ("#### -5", "-5", 1, 1),
        ("#### 0.333333", "0.3333333", 1, 1),
        ("#### 0.3333", "0.3333333", 0, 1),
        ("#### .5", "0.5", 1, 1),
        (r"\boxed{yes}", "yes", 1, 1),
        (r"\boxed{no}", "yes", 0, 1),
        ("#### 5", "-5", 0, 1),
        ("#### 72 or 73", "72", 0, 0),
        ("#### 72/2", "72", 0, 0),
        (r"\boxed{72, 73}", "72", 0, 1),
        ("#### nan", "nan", 1, 0),
        ("#### nan", "72", 0, 0),
        ("#### inf", "72", 0, 0),
        ("#### 1_0", "10", 0, 0),
        (r"\boxed{}", "72", 0, 0),
        (r"\boxed{72", "72", 0, 0),
        ("####", "72", 0, 0),
        ("#### ", "", None, 0),
        ("72", "72", 0, 0),
        ("#### 72" + " " * 500, "72", 0, 0),
        ("#### 72" + "x" * 500, "72", 0, 0),
        ("x" * 10_000 + "#### 72", "72", 1, 1),
        ("#### " + "9" * 480, "72", 0, 1),
    ],
)
def test_answers(reply, truth, right, formed):
    if right is not None:
        assert score(accuracy, reply, truth) == right
    assert form([turn(reply)]) == [formed]


def test_a_number_that_no_float_holds_is_equal_to_itself_alone():
    nines, eights = "9" * 400, "8" * 400
    assert score(accuracy, f"#### {nines}", nines) == 1
    assert score(accuracy, f"#### {nines}", eights) == 0
    assert score(accuracy, f"#### {nines}", nines[:-1] + "8") == 0
    assert score(accuracy, f"#### {nines}.0", nines) == 1
    assert score(accuracy, "#### 9007199254740993", "9007199254740992") == 0


def test_a_subclass_of_ones_own_is_a_few_lines():
    """As docs/adding.md has it."""

    class GSM8KBrevityReward(GSM8KAccuracyReward):
        def score(self, turn):
            return super().score(turn) / (1 + len(turn.reply) / 1000)

    brief, long, wrong = "#### 4", "x" * 994 + "#### 4", "#### 5"
    rewards = GSM8KBrevityReward()([turn(text, "4") for text in (brief, long, wrong)])
    assert rewards == [1 / 1.006, 0.5, 0.0]
