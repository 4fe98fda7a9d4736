"""Conversations: what templates encode and rewards read. All are plain dicts."""

import json
from typing import Any, TypedDict


class ToolCall(TypedDict, total=False):
    """A call that an assistant's message makes. id: what the tool's message names as tool_call_id;
    type: 'function'; function: {'name': str, 'arguments': a dict, or its JSON text}."""

    id: str
    type: str
    function: dict  # {'name': str, 'arguments': str or dict}


class Tool(TypedDict, total=False):
    """A function that the model may call. type: 'function'; function: {'name': str,
    'description': str, 'parameters': JSON schema of its arguments, a dict}."""

    type: str
    function: dict  # {'name', 'description', 'parameters': JSON schema}


class Message(TypedDict, total=False):
    """One turn. role: 'system', 'user', 'assistant' or 'tool'; content: text, or a list of parts
    {'type': 'text', 'text': str}; tool_calls, reasoning_content (what was thought before the
    answer): of an assistant; tool_call_id: of a tool, the id of the call that it answers."""

    role: str  # 'system', 'user', 'assistant' or 'tool'
    type: str
    content: str | list  # text, or parts {'type': 'text', 'text': ...}
    tool_calls: list[ToolCall]
    tool_call_id: str
    reasoning_content: str


class Trajectory(TypedDict, total=False):
    """A conversation: a row before it is encoded, and what rewards read.

    messages: in their order, at least one. tools: that the model may call, for the chat template.
    user_data: pairs (key, text or JSON text) of what else belongs to the row, such as ground_truth:
    see pack_value and user_data_get. images, videos, audios: lists; Template refuses any that is
    not empty, since it reads text. prompt: the question as text, which nothing here reads.
    """

    messages: list[Message]
    tools: list[Tool]
    user_data: list  # pairs of (key, value as JSON text): see pack_value, user_data_get
    images: list
    videos: list
    audios: list
    prompt: str


def pack_value(value: Any) -> str:
    """A value as `user_data` keeps it: JSON text, so that rows of any types fit one column."""
    return json.dumps(value, ensure_ascii=False)


def user_data_get(user_data, key, default=None):
    """The value of the first pair named `key`; JSON text is decoded, other text is not."""
    for name, value in user_data or ():
        if name == key:
            if not isinstance(value, str):
                return value
            try:
                return json.loads(value)
            except ValueError:
                return value
    return default
