"""Rewards of answers that are numbers, formulas, or a few words."""

from twinkle import checks
from twinkle.reward.equality import equal
from twinkle.reward.reading import TextReward


class MathReward(TextReward):
    """1 where the answer equals user_data's `ground_truth_key`, as twinkle.reward.equality.equal
    says, else 0.

    The answer, of the reply and of the truth, is the contents of the last \\boxed{} that is closed;
    without one all of the text, of a reply that after </think>. Nothing is evaluated but numbers
    and formulas of bounded size; a value too large for that is compared as text.
    InvalidError: a ground_truth_key that is no text.
    """

    def __init__(self, ground_truth_key="solution"):
        self.ground_truth_key = checks.text("reward: ground_truth_key", ground_truth_key)

    def score(self, turn):
        truth = turn.truth(self.ground_truth_key)
        return equal(_answer(turn), turn.last_box(truth) or truth)


class MultiModalAccuracyReward(TextReward):
    """1 where the answer equals user_data's ground_truth, else 0.

    The answer is the contents of the last <answer></answer>, and in a \\boxed{} there; without one
    as in MathReward. Equal are numbers, formulas and words as in MathReward, and texts of several
    words that differ in case, white space or a point at the end only.
    """

    def score(self, turn):
        truth = turn.truth()
        truth = turn.between(truth, "answer") or truth
        inside = turn.between(turn.reply, "answer")
        answer = _answer(turn) if inside is None else turn.last_box(inside) or inside
        truth = turn.last_box(truth) or truth
        return equal(answer, truth) or (bool(answer) and _folded(answer) == _folded(truth))


def _answer(turn):
    return turn.last_box(turn.reply) or turn.reply.rpartition("</think>")[2].strip()


def _folded(text):
    return " ".join(text.casefold().split()).rstrip(".")
