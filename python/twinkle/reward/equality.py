"""Compares two answers as math-verify does, in a process that may be lost (judge.py)."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from twinkle.errors import NotAvailableError
from twinkle.logger import get_logger

LIMIT_S = 2.0  # processor time of one comparison
_MOST = 1000  # characters of an answer that is taken apart; longer ones are compared as they are
_IDLE = []  # processes that wait for a comparison
_SIGNS = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | str.maketrans(
    {"−": "-", "–": "-", "·": "*", "⋅": "*", "、": ",", "。": ".", "π": r"\pi "}
)
_DROPPED = re.compile(r"\\?[$%]|\^?\s*\{?\s*(?:\\circ|\\degree|°)(?![a-z])\s*\}?|\\[,!;]|\\\s*$")
_MIXED = re.compile(r"(?<![\d./)}])(\d+) +(\d+) */ *(\d+)(?![\d.])")
_POWER = re.compile(r"(?<![\w.\\/^])(\d+(?:\.\d+)?)[eE]\+?(-?\d+)(?!\w|\.\d)")
_UNIT = re.compile(r"(?<=[\d})\s])\s*(?:\\(?:text|mathrm)\s*\{[^{}]*\}[\s/*^{}\d-]*)+$")
_WORDS = re.compile(r"(?:\\text\w*\s*\{)?\(?([^\W\d_]{2,}(?: [^\W\d_]+)*|[A-Za-z])\)?\}?")

os.register_at_fork(after_in_child=_IDLE.clear)  # a process answers to one parent


def compared(reply, truth):
    """(True if two answers are equal, |reply / truth - 1| of real numbers or None): texts, LaTeX or
    plain, judged by math-verify.

    Dollar, percent and degree signs and units in \\text at the end are left out first; 3 1/2 is
    7/2, and 1e5 is 100000. Words are equal in any case. Numbers with a relative error of 1e-5 or
    more differ. An answer of more than 1000 characters is compared as it is; one that takes more
    than LIMIT_S is not equal, with a warning once.
    NotAvailableError: math-verify is not installed.
    """
    if max(len(reply), len(truth)) > _MOST:
        return reply.strip() == truth.strip() != "", None
    reply, truth = _plain(reply), _plain(truth)
    if not reply or not truth:
        return False, None
    words = [_WORDS.fullmatch(text) for text in (reply, truth)]
    if all(words):
        return words[0][1].casefold() == words[1][1].casefold(), None
    if reply.replace(" ", "") == truth.replace(" ", ""):
        return True, 0.0
    return _judged(reply, truth)


def equal(reply, truth):
    """True if two answers are equal, as compared says."""
    return compared(reply, truth)[0]


def _plain(text):
    text = text.translate(_SIGNS).replace("**", "^").replace("{,}", ",")
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", _DROPPED.sub("", text))
    text = _POWER.sub(r"\1\\times 10^{\2}", _UNIT.sub("", text))
    text = re.sub(r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi ", text)
    text = re.sub(r"(?<![A-Za-z\\])sqrt\(([^()]*)\)", r"\\sqrt{\1}", text)
    return " ".join(text.split()).rstrip(".,;: ")


def _judged(reply, truth):
    try:
        judge = _IDLE.pop()
    except IndexError:  # all are at work, for other threads
        judge = _started()
    with contextlib.suppress(BrokenPipeError):
        judge.stdin.write(json.dumps([LIMIT_S, reply, truth]) + "\n")
        judge.stdin.flush()
    answer = judge.stdout.readline()
    if not answer:
        judge.wait()
        get_logger().warning_once(
            f"reward: an answer that took more than {LIMIT_S:g} s to compare counts as not equal: "
            f"{reply[:80]!r}, the truth being {truth[:80]!r}",
            hash_id="reward: limit",
        )
        return False, None
    _IDLE.append(judge)  # after a whole answer alone: an interrupted one is never read as the next
    return tuple(json.loads(answer))


def _started():
    command = [sys.executable, "-P", str(Path(__file__).with_name("judge.py"))]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    judge = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, text=True)
    if not judge.stdout.readline():
        raise NotAvailableError(
            "reward: comparing answers needs the package math-verify: pip install math-verify"
        )
    return judge
