"""The inputs of rewards: a trajectory's reply, its thought and answer, and what it is compared
with. Replies are what models write: nothing here takes longer than in proportion to their length.
"""

import json
import re
from collections.abc import Mapping

from twinkle import checks
from twinkle.errors import refuse_unknown, require
from twinkle.reward.base import Reward

_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_LISTS = (list, tuple)


class TextReward(Reward):
    """A reward of one trajectory at a time: a subclass defines score(turn)."""

    def __call__(self, trajectories, **kwargs):
        """A float from 0 to 1 for each trajectory, in order: score of it. 0 for an empty reply.

        The reply is the last message of role 'assistant' after the last of role 'user'; of a
        content in parts the text is read. InvalidError: no list of dicts; a trajectory without
        messages or without a reply, or without the ground truth that the class reads, each by
        number and key; an unknown argument.
        """
        name = type(self).__name__
        refuse_unknown(f"reward: {name}", kwargs)
        _must(isinstance(trajectories, _LISTS), "reward: trajectories", trajectories,
              "a list of Trajectories")  # fmt: skip
        turns = [Turn(t, f"reward: trajectory {i}", name) for i, t in enumerate(trajectories)]
        return [float(self.score(turn)) for turn in turns]

    def score(self, turn):
        """The reward of a Turn, from 0 to 1."""
        raise NotImplementedError(f"{type(self).__name__} must define score")


class Turn:
    """A model's turn since the user's last message. messages: those; reply: the text of the
    last one of the assistant, '' where it has none; thought: its reasoning_content, likewise.

    InvalidError: no dict, no messages, or none of role 'assistant' after the user's last.
    """

    def __init__(self, trajectory, what, reader):
        _must(isinstance(trajectory, Mapping), what, trajectory, "a Trajectory, a dict")
        messages = trajectory.get("messages")
        _must(messages and _all(messages, Mapping), f"{what}: messages", messages,
              "a list of messages, the last the reply")  # fmt: skip
        roles = [message.get("role") for message in messages]
        start = max((i for i, role in enumerate(roles) if role == "user"), default=-1) + 1
        self.messages = messages[start:]
        replies = [message for message in self.messages if message.get("role") == "assistant"]
        require(
            replies,
            f"{what} has no reply: its last message is of role {roles[-1]!r}, after the user's last"
            " there must be one of role 'assistant'",
        )
        self.reply, thought = text_of(replies[-1]), replies[-1].get("reasoning_content")
        self.thought = thought if isinstance(thought, str) else ""
        self._user_data, self._what, self._reader = trajectory.get("user_data"), what, reader

    def user_data(self, key):
        """All values of user_data that are named `key`; JSON text of a text, or of a list of
        texts, is decoded, other text is not: [1, 2] may be an interval. InvalidError: user_data is
        neither pairs nor a dict."""
        data = self._user_data
        pairs = list(data.items()) if isinstance(data, Mapping) else data or []
        _must(_all(pairs, _LISTS) and all(len(pair) == 2 for pair in pairs),
              f"{self._what}: user_data", data, "a list of pairs (key, value)")  # fmt: skip
        return [_decoded(value) for name, value in pairs if name == key]

    def truths(self, key="ground_truth"):
        """Texts, any of which is right: those of the pairs named `key`, of lists each one.
        InvalidError: there is none, or only empty ones."""
        return [text for texts in self._texts(key) for text in texts]

    def truth(self, key="ground_truth"):
        """The text of the first pair named `key` that has one; of a list, its texts joined by ', '.
        InvalidError: as truths."""
        return ", ".join(self._texts(key)[0])

    def _texts(self, key):
        values = (value if isinstance(value, _LISTS) else [value] for value in self.user_data(key))
        texts = [[_text(one) for one in value if one is not None] for value in values]
        texts = [kept for some in texts if (kept := [text for text in some if text.strip()])]
        require(
            texts,
            f"{self._what} has no {key!r} in user_data, which {self._reader} compares with: have "
            "the preprocessor set it, or filter out rows without one",
        )
        return texts


def text_of(message):
    """A message's text: content, or the texts of its parts together; '' where it is None.
    InvalidError: a content that is none of these."""
    content = message.get("content")
    parts = [content or ""] if content is None or isinstance(content, str) else content
    _must(isinstance(parts, _LISTS), "reward: a message's content", content,
          "a text or a list of parts")  # fmt: skip
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


def boxes(text):
    """(start, end) of the contents of each \\boxed{...} that is closed, in order; of boxes in boxes
    the outer ones. What a cut reply left open holds nothing."""
    opened, found = [], []
    for mark in _BRACES.finditer(text):
        if mark[0] == "}":
            start = opened.pop() if opened else None
            if start is not None:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, mark.start()))
        elif mark[0].endswith("{") and mark[0] != "\\{":
            opened.append(mark.end() if len(mark[0]) > 1 else None)
    return found


def last_box(text):
    """The contents of the last \\boxed{...} that is closed, stripped; None where there is none."""
    found = boxes(text)
    return text[slice(*found[-1])].strip() if found else None


def between(text, tag):
    """The text between the last <tag> that </tag> follows, and that, stripped; else None."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end].strip() if 0 <= start < end else None


def _must(right, what, value, must):
    if not right:
        checks.refuse(what, value, must)


def _all(values, kind):
    return isinstance(values, _LISTS) and all(isinstance(value, kind) for value in values)


def _decoded(value):
    if not isinstance(value, str) or not value.startswith(('"', '["')):
        return value
    try:
        out = json.loads(value)
    except ValueError:
        return value
    return out if isinstance(out, str) or _all(out, str) else value


def _text(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
