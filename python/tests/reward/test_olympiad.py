"""Rewards of OlympiadBench."""

import math

import pytest
from turns import score, turn

from twinkle.preprocessor import OlympiadBenchProcessor
from twinkle.reward import (
    OlympiadBenchAccuracyReward,
    OlympiadBenchFormatReward,
    OlympiadBenchQualityReward,
)

accuracy = OlympiadBenchAccuracyReward()
form, quality = OlympiadBenchFormatReward(), OlympiadBenchQualityReward()


def near(error):
    return 0.99 * math.exp(-5 * error)


@pytest.mark.parametrize(
    ("answer", "truth", "reward"),
    [
        (r"\frac{1}{2}", "$0.5$", 1),
        ("(1,2)", r"$(1, 2)$", 1),
        ("2,1", "1, 2", 1),
        ("x=4", "4", 1),
        ("99", "100", near(0.01)),
        ("101", "100", near(0.01)),
        ("-100", "100", near(2)),
        ("3.14", r"\pi", near(abs(3.14 / math.pi - 1))),
        ("x = 99", "100", near(0.01)),
        ("1", "0", 0),
        ("10^{300}", "10^{-300}", 0),
        ("blue", "100", 0),
        ("x+1", "100", 0),
        ("100", "x+1", 0),
        ("1,3", "1,2", 0),
        ("9**9**9", "5", 0),
        ("", "5", 0),
    ],
)
def test_accuracy_gives_part_of_the_reward_for_numbers_that_are_near(answer, truth, reward):
    assert score(accuracy, f"So \\boxed{{{answer}}}.", truth) == pytest.approx(reward)


def test_accuracy_needs_a_box_and_reads_the_last():
    assert score(accuracy, "5", "5") == 0
    assert score(accuracy, r"\boxed{4} \boxed{5}", "5") == 1
    assert score(accuracy, r"\boxed{5} \boxed{5", "5") == 1


@pytest.mark.parametrize("several", [True, "true", "True"])
def test_several_answers_may_stand_in_one_box_or_in_the_last_ones(several):
    def of(reply):
        return score(accuracy, reply, "1, 2", is_multiple_answer=several)

    assert of(r"\boxed{2, 1}") == of(r"\boxed{7} \boxed{1} and \boxed{2}") == 1
    assert (
        of(r"\boxed{1}") == of(r"\boxed{1} \boxed{3}") == of(r"\boxed{1} \boxed{2} \boxed{3}") == 0
    )
    assert score(accuracy, r"\boxed{1} \boxed{2}", "1, 2", is_multiple_answer=False) == 0


@pytest.mark.parametrize(
    ("unit", "answers"),
    [
        (
            "$\\mathrm{~m}/\\mathrm{s}$",
            ["5", "5 m/s", r"5\text{ m/s}", r"5\,\mathrm{m}/\mathrm{s}"],
        ),
        ("m", ["5", "5 m", r"5\mathrm{m}"]),
        (None, ["5"]),
    ],
)
def test_rows_of_the_preprocessor_are_read_and_units_may_be_left_out(unit, answers):
    row = {"question": "How fast?", "final_answer": ["5"], "unit": unit}
    made = OlympiadBenchProcessor().preprocess(row)
    for answer in answers:
        reply = {"role": "assistant", "content": f"\\boxed{{{answer}}}"}
        assert accuracy([{**made, "messages": [*made["messages"], reply]}]) == [1.0]


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        (r"So \boxed{5}", 1.0),
        (r"\boxed{5} so \boxed{ 5 }", 1.0),
        (r"\boxed{5}" + "." * 300 + r"\boxed{5}", 1.0),
        (r"\boxed{4} so \boxed{5}", 0.7),
        (r"\boxed{5}" + "." * 300, 0.7),
        (r"\boxed{4} \boxed{5}" + "." * 300, 0.4),
        (r"\boxed{}", 0),
        (r"\boxed{5", 0),
        ("5", 0),
    ],
)
def test_format_is_of_three_parts(reply, reward):
    assert form([turn(reply)]) == [pytest.approx(reward)]


WORDS = [f"word{i}" for i in range(400)]


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        (" ".join(WORDS[:100])[:300].ljust(300, "x"), 0.6),  # length and variety, no reasoning
        ("x", 0.3 / 300 + 0.3),
        ("a b c d " * 75, 0.3 * 599 / 599 + 0.3 * 4 / 297),
        (
            "First a = 1 + 2, b = 3 * 4, c = 5 - 6 / 7 ^ 8. Therefore " + r"\boxed{5}",
            0.4 + 0.3 * 66 / 300 + 0.3,
        ),
        ("首先设 a=1+2，b=3*4，c=5-6/7。因此" + r"\boxed{5}", None),
    ],
)
def test_quality_is_reasoning_length_and_variety(reply, reward):
    got = quality([turn(reply)])[0]
    if reward is None:
        assert got > 0.6
    else:
        assert got == pytest.approx(reward, abs=1e-3)


def test_quality_falls_with_length_and_repetition():
    def of(count):
        return quality([turn(" ".join(f"{i:05d}" for i in range(count // 6 + 1))[:count])])[0]

    for length, part in ((150, 0.5), (300, 1), (1500, 1), (2250, 0.75), (3000, 0.5), (9000, 0.25)):
        assert of(length) == pytest.approx(0.3 * part + 0.3, abs=2e-3)
    assert quality([turn("a" * 3000)])[0] < 0.2
