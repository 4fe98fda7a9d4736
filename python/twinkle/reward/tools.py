"""Rewards of agents that look things up: F1 of the answer's words, and use of tools."""

import re
from collections import Counter, deque

from twinkle import checks
from twinkle.reward.reading import TextReward

_WORD = re.compile(r"[\u4e00-\u9fff]|[^\W_\u4e00-\u9fff]+")
_NO_WORDS = {"a", "an", "the"}


class F1Reward(TextReward):
    """F1 of the words of the answer and of user_data's ground_truth (Rajpurkar et al. 2016): twice
    the words that both have, each as often as in both, over the words of both. Of several truths,
    in a list or as pairs, the one that gives most.

    Words are runs of letters and digits in lower case, a Chinese character each; a, an and the are
    left out. The answer is the contents of the last \\boxed{} that is closed, else what the last
    match of answer_pattern (its first group, where it has one) finds, else in the last
    <answer></answer>; where there is none the reward is 0.

    answer_pattern: None, or a regular expression, as text or compiled: a text is matched as it
    stands, and how long it takes on what models write is the pattern's business.
    InvalidError: a pattern that re does not take.
    """

    def __init__(self, answer_pattern=None):
        try:
            self._pattern = None if answer_pattern is None else re.compile(answer_pattern)
        except (re.error, TypeError) as error:
            must = f"a regular expression: {error}"
            checks.refuse("reward: answer_pattern", answer_pattern, must)

    def score(self, turn):
        answer = _words(self._answer(turn))
        return max(_f1(answer, _words(truth)) for truth in turn.truths())

    def _answer(self, turn):
        box = turn.last_box(turn.reply)
        if box:
            return box
        matches = deque(self._pattern.finditer(turn.reply) if self._pattern else (), maxlen=1)
        if matches:
            return matches[0][1 if self._pattern.groups else 0] or ""
        return turn.between(turn.reply, "answer") or ""


class ToolExploreReward(F1Reward):
    """1 where F1Reward is at least f1_threshold and a tool was of use, else 0: since the user's
    last message, after one of the assistant, there is a message of role 'tool' that is not empty
    and does not begin with "error", in any case. How many there are makes no difference.

    f1_threshold: from 0 to 1. InvalidError: another one, and as F1Reward.
    """

    def __init__(self, f1_threshold=0.5, answer_pattern=None):
        super().__init__(answer_pattern)
        self._threshold = checks.share("reward: f1_threshold", f1_threshold)

    def score(self, turn):
        good = super().score(turn) >= self._threshold
        return good and bool(turn.reply.strip()) and _used_a_tool(turn)


def _words(text):
    return [word for word in _WORD.findall(text.lower()) if word not in _NO_WORDS]


def _f1(answer, truth):
    shared = sum((Counter(answer) & Counter(truth)).values())
    return 2 * shared / (len(answer) + len(truth)) if shared else 0.0


def _used_a_tool(turn):
    roles = [message.get("role") for message in turn.messages]
    results = turn.messages[roles.index("assistant") :]
    texts = [turn.text_of(message).strip() for message in results if message.get("role") == "tool"]
    return any(text and text[:5].lower() != "error" for text in texts)
