"""FormatReward and CoTReward: whether a reply thinks before it answers."""

import re

from twinkle.reward.reading import TextReward

# As far as the first tag that closes: (?>) takes no later one.
_FORM = re.compile(r"\s*<think>(?>(.*?)</think>)\s*<answer>(?>(.*?)</answer>)\s*", re.DOTALL)
_STEP = re.compile(
    r"^[ \t#*_>-]{0,16}(?:step[ \t]{0,4}(\d{1,3})\b"
    r"|第[ \t]?([0-9一二三四五六七八九十]{1,3})[ \t]?步)",
    re.IGNORECASE | re.MULTILINE,
)


class FormatReward(TextReward):
    """1 where the reply is <think>...</think>, then <answer>...</answer>, with text in both and
    nothing but white space around the two, else 0. A thought in the message's
    reasoning_content counts as one in <think>. The answer holds none of the four tags."""

    def score(self, turn):
        text = f"<think>{turn.thought}</think>{turn.reply}" if turn.thought else turn.reply
        found = _FORM.fullmatch(text)
        thought, answer = found.groups() if found else ("", "")
        inside = any(mark in answer for mark in ("<think>", "</think>", "<answer>"))
        return bool(thought.strip() and answer.strip()) and not inside


class CoTReward(TextReward):
    """1 where the model reasons in words before its answer, else 0. Reasoning is one of: a
    reasoning_content; text in <think>...</think>; or lines that begin with two or more different
    numbers of steps, "Step 1", "第二步", in what the assistant wrote since the user's last message.
    0 for an empty reply, which answers nothing, whatever was thought."""

    def score(self, turn):
        if not turn.reply.strip():
            return 0
        text = "\n".join(turn.text_of(m) for m in turn.messages if m.get("role") == "assistant")
        thought, found, answer = text.partition("</think>")
        if turn.thought.strip() or (
            found and thought.rpartition("<think>")[2].strip() and answer.strip()
        ):
            return 1
        return len({step[0] or step[1] for step in _STEP.findall(text)}) >= 2
