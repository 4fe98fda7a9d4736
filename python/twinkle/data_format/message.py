"""Conversations: what templates encode and rewards read. All are plain dicts."""

import json
from typing import Any, TypedDict


class ToolCall(TypedDict, total=False):
    id: str
    type: str
    function: dict  # {'name': str, 'arguments': str or dict}


class Tool(TypedDict, total=False):
    type: str
    function: dict  # {'name', 'description', 'parameters': JSON schema}


class Message(TypedDict, total=False):
    role: str  # 'system', 'user', 'assistant' or 'tool'
    type: str
    content: str | list  # text, or parts {'type': 'text', 'text': ...}
    tool_calls: list[ToolCall]
    tool_call_id: str
    reasoning_content: str


class Trajectory(TypedDict, total=False):
    messages: list[Message]
    tools: list[Tool]
    user_data: list  # of (key, value as JSON text): see pack_value, user_data_get
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
