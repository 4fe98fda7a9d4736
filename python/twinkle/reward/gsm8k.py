"""Rewards of GSM8K (Cobbe et al. 2021), whose answers are numbers."""

import re
from decimal import Decimal

from twinkle.reward.reading import TextReward

_TAIL = 500  # characters of the reply that are read
# A sign, digits with or without commas, a unit in words.
_NUMBER = re.compile(
    r"([-+]?)\$?([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))[$*]*(?:%|(?:\\text\{)?[^\W\d_]*\}?)[$*]*\.?"
)


class GSM8KAccuracyReward(TextReward):
    """1 where the answer is user_data's ground_truth, else 0.

    The answer: in the last 500 characters of the reply, the contents of the last \\boxed{} that is
    closed, else on the line after the last ####. Commas, white space, a percent sign and a unit in
    words after the number are left out, and dollars and asterisks around it or the whole. Equal are
    numbers that differ by less than 1e-5, as decimals of any length, and other texts that are the
    same.
    """

    def score(self, turn):
        truth, answer = _plain(turn.truth()), _plain(answer_of(turn))
        left, right = _number(answer), _number(truth)
        if left is None or right is None:
            return bool(answer) and answer == truth
        return abs(left - right) < Decimal("1e-5")


class GSM8KFormatReward(TextReward):
    """1 where there is an answer, right or wrong, else 0: where GSM8KAccuracyReward would find a
    number in a box or after ####, or other text in a box."""

    def score(self, turn):
        box = turn.last_box(turn.reply[-_TAIL:])
        return bool(box) or _number(_plain(answer_of(turn))) is not None


def answer_of(turn):
    """The text of a reply's answer, as GSM8KAccuracyReward says; '' where there is none."""
    tail = turn.reply[-_TAIL:]
    box = turn.last_box(tail)
    if box:
        return box
    _, mark, after = tail.rpartition("####")
    lines = after.strip().splitlines() if mark else []
    return lines[0] if lines else ""


def _plain(text):
    return re.sub(r"\\[,!; ]|\\(?=[$%])|[,\s]", "", text).strip("$*")


def _number(text):
    found = _NUMBER.fullmatch(text)
    if not found or (found[1] and found[2][0] in "+-"):
        return None
    return Decimal(found[1] + found[2])
