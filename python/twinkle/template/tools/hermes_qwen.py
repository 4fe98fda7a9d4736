"""<tool_call> blocks, as Hermes and the Qwen families write them."""

import re

from twinkle.template.tools.base import SpanParser, blocks, json_or, tool_call

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")
_END = re.compile(r"</parameter>")
_RESULT = re.compile(r"\s*<tool_response>(.*?)(?:</tool_response>\s*|\Z)", re.DOTALL)


class HermesQwenParser(SpanParser):
    """{"name": ..., "arguments": {...}} or <function=name><parameter=key>value</parameter>
    </function> between <tool_call> and </tool_call>; the last block may lack its end."""

    name = "hermes_qwen"
    open_marker, close_marker = "<tool_call>", "</tool_call>"

    def spans(self, text):
        return ((*block.span(), _call(block[1])) for block in _BLOCK.finditer(text))

    def extract_tool_result(self, text):
        found = _RESULT.fullmatch(text)
        return found and found[1].strip()


def _call(block):
    function = _FUNCTION.search(block)
    if function:
        found = blocks(function[2], _PARAMETER, _END, lambda _: "</parameter>")
        values = ((key[1].strip(), value.strip()) for key, value, _ in found)
        return tool_call(function[1].strip(), {key: json_or(v, v) for key, v in values})
    call = json_or(block, None)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        arguments = json_or(arguments, {})
    return tool_call(call["name"], arguments if isinstance(arguments, dict) else {})
