"""Trajectories in the standard form of messages: what encode makes of them before it renders."""

import json
import reprlib

from twinkle import checks
from twinkle.errors import InvalidError


def standard(trajectory, default_system=""):
    """A copy whose messages have text contents, reasoning apart from the answer, and tool calls as
    lists with dicts of arguments. default_system: put first where a user message is.

    InvalidError: no messages, a message without role, a content part that is not text.
    """
    messages = trajectory.get("messages")
    if not isinstance(messages, (list, tuple)) or not messages:
        checks.refuse("template: messages", messages, "a list of messages that is not empty")
    made = [_message(message, index) for index, message in enumerate(messages)]
    if default_system and made[0]["role"] == "user":
        made.insert(0, {"role": "system", "content": default_system})
    return {**trajectory, "messages": made}


def _message(given, index):
    what = f"template: messages[{index}]"
    message = {k: v for k, v in checks.mapping(what, given).items() if v is not None}
    checks.text(f"{what}.role", message.get("role"), empty=True)
    if isinstance(message.get("content"), (list, tuple)):
        message["content"] = "".join(_text(part, what) for part in message["content"])
    if message["role"] == "assistant":
        _split_reasoning(message)
        if "tool_calls" in message:
            message["tool_calls"] = _calls(message["tool_calls"], what)
    return message


def _text(part, what):
    text = part.get("text") if isinstance(part, dict) else part
    if isinstance(part, dict) and part.get("type", "text") != "text":
        raise InvalidError(
            f"{what} has a part of type {reprlib.repr(part['type'])}, this version reads text"
        )
    return checks.text(f"{what}: the text of a part", text, empty=True)


def _split_reasoning(message):
    """<think>thought</think>answer: the thought goes into reasoning_content."""
    content = message.get("content")
    if not isinstance(content, str) or "reasoning_content" in message or "</think>" not in content:
        return
    thought = content.partition("</think>")[0].rpartition("<think>")[2]
    message["reasoning_content"] = thought.strip("\n")
    message["content"] = content.rpartition("</think>")[2].lstrip("\n")


def _calls(calls, what):
    if isinstance(calls, str):
        calls = _json(calls, list, f"{what}.tool_calls")
    if not isinstance(calls, (list, tuple)) or not all(isinstance(call, dict) for call in calls):
        checks.refuse(f"{what}.tool_calls", calls, "a list of dicts")
    out = []
    for call in calls:
        function = dict(call.get("function") or {})
        if isinstance(function.get("arguments"), str):
            function["arguments"] = _json(function["arguments"], dict, f"{what}: arguments")
        out.append({**call, "function": function} if function else dict(call))
    return out


def _json(text, kind, what):
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        checks.refuse(what, text, f"the JSON text of a {kind.__name__}")
    return value
