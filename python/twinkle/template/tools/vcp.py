"""The blocks of VCPChat."""

import re

from twinkle.template.tools.base import SpanParser, blocks, tool_call

_BEGIN = re.compile(r"<<<\[TOOL_REQUEST\]>>>")
_END = re.compile(r"<<<\[END_TOOL_REQUEST\]>>>")
# A value between the escaping brackets may hold the plain ones.
_KEY = re.compile(r"(?<!\w)(\w+)\s*:\s*「始(ESCAPE)?」")
_VALUE_END = re.compile(r"「末(?:ESCAPE)?」")


class VCPParser(SpanParser):
    """key:「始」value「末」 lines between the two marks of a request; tool_name is the tool, the
    others are its arguments, as text."""

    name = "vcp"

    def detect(self, text):
        return _BEGIN.search(text) is not None

    def spans(self, text):
        for begin, block, end in blocks(text, _BEGIN, _END, lambda _: "<<<[END_TOOL_REQUEST]>>>"):
            found = blocks(block, _KEY, _VALUE_END, lambda key: f"「末{key[2] or ''}」")
            fields = {key[1]: value for key, value, _ in found}
            tool = fields.pop("tool_name", "").strip()
            yield begin.start(), end, tool_call(tool, fields) if tool else None
