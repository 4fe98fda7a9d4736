"""Rewards of OlympiadBench (He et al. 2024): mathematics and physics, in Chinese or English."""

import math
import re

from twinkle.reward.equality import compared, equal
from twinkle.reward.reading import TextReward

_NEAR_END = 200  # characters after the start of the last box, in OlympiadBenchFormatReward
_READ = 20_000  # characters at the end of a reply that OlympiadBenchQualityReward reads
_STEPS = re.compile(
    r"第.{1,3}步|首先|其次|然后|接着|最后|\b(?:step \d|first|second|next|then|finally)\b",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(
    r"所以|因此|故|综上|答案|\b(?:so|thus|hence|therefore|answer)\b", re.IGNORECASE
)
_EQUATION = re.compile(r"(?<![=<>!:])=(?!=)")
_OPERATOR = re.compile(r"[-+*/^]|\\(?:frac|sqrt|times|cdot|sum|int)\b")
# A Chinese character, or letters and signs; long runs are cut, so that they repeat themselves, too.
_WORD = re.compile(r"[\u4e00-\u9fff]|[^\s\u4e00-\u9fff]{1,12}")


class OlympiadBenchAccuracyReward(TextReward):
    """1 where the answer equals user_data's ground_truth, as in MathReward; for one that is a
    number 0.99 exp(-5 |answer - truth| / |truth|) of what is one, too (0 of a truth of 0); else 0.

    The answer is the contents of the last \\boxed{} that is closed; where user_data has a true
    is_multiple_answer, one box may hold all answers, or the last boxes one each; their order is
    free. user_data's unit, which ends ground_truth, may be left out.
    """

    def score(self, turn):
        truth, unit = turn.truth(), [one for one in turn.user_data("unit") if isinstance(one, str)]
        answers = [turn.reply[start:end].strip() for start, end in turn.boxes(turn.reply)]
        if unit and unit[0].strip():
            plain = re.sub(r"\\[A-Za-z]+|[\\${}~\s]", "", unit[0])
            truth = truth.strip().removesuffix(unit[0].strip())
            answers = [answer.removesuffix(plain).strip() for answer in answers]
        answers = [answer for answer in answers if answer]
        if not answers:
            return 0
        same, error = compared(answers[-1], truth)
        if not same and turn.user_data("is_multiple_answer")[:1] in ([True], ["true"], ["True"]):
            ends = range(2, min(len(answers), 20) + 1)
            return any(equal(", ".join(answers[-count:]), truth) for count in ends)
        return same or (0 if error is None else 0.99 * math.exp(-5 * error))


class OlympiadBenchFormatReward(TextReward):
    """0.4 for a \\boxed{} that is closed and not empty; and where there is one, 0.3 if the last
    begins within the last 200 characters of the reply, 0.3 if all hold the same, but for white
    space."""

    def score(self, turn):
        reply = turn.reply.rstrip()
        found = [(start, end) for start, end in turn.boxes(reply) if reply[start:end].strip()]
        if not found:
            return 0
        same = len({re.sub(r"\s", "", reply[start:end]) for start, end in found}) == 1
        return 0.4 + 0.3 * (len(reply) - found[-1][0] <= _NEAR_END) + 0.3 * same


class OlympiadBenchQualityReward(TextReward):
    """0.4 reasoning + 0.3 length + 0.3 variety, each from 0 to 1, of the last 20,000 characters;
    0 for an empty reply. Nothing is compared with a truth.

    reasoning: a quarter each for three "=" or more; five operators or more; a word that orders
    steps ("first", "Step 2", "首先"); a word that concludes ("therefore", "所以") within 500
    characters before the last \\boxed{}. length, in characters of the whole reply: rises to 1 at
    300, falls from 1500 to 0.5 at 3000 and 0.25 at 6000 and more, straight in between. variety: the
    share of different ones among all runs of four words; a Chinese character is a word.
    """

    def score(self, turn):
        reply = turn.reply.strip()
        if not reply:
            return 0
        tail = reply[-_READ:]
        return 0.4 * _reasoning(turn, tail) + 0.3 * _length(len(reply)) + 0.3 * _variety(tail)


def _reasoning(turn, text):
    found = turn.boxes(text)
    before = text[max(found[-1][0] - 500, 0) : found[-1][0]] if found else ""
    counted = (len(_EQUATION.findall(text)) >= 3) + (len(_OPERATOR.findall(text)) >= 5)
    return (counted + bool(_STEPS.search(text)) + bool(_CONCLUSION.search(before))) / 4


def _length(n):
    return min(n / 300, 1, max(1 - (n - 1500) / 3000, 0.5 - (n - 3000) / 12000, 0.25))


def _variety(text):
    words = _WORD.findall(text)
    runs = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return len(set(runs)) / len(runs) if runs else 1.0
