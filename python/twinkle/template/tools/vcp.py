"""The blocks of VCPChat."""

import re

from twinkle.template.tools.base import ToolCallParser, tool_call

_BEGIN = "<<<[TOOL_REQUEST]>>>"
_BLOCK = re.compile(r"<<<\[TOOL_REQUEST\]>>>(.*?)<<<\[END_TOOL_REQUEST\]>>>", re.DOTALL)
# A value between the escaping brackets may hold the plain ones.
_FIELD = re.compile(r"(\w+)\s*:\s*(?:「始ESCAPE」(.*?)「末ESCAPE」|「始」(.*?)「末」)", re.DOTALL)


class VCPParser(ToolCallParser):
    """key:「始」value「末」 lines between the two marks of a request; tool_name is the tool, the
    others are its arguments, as text."""

    name = "vcp"

    def detect(self, text):
        return _BEGIN in text

    def parse(self, text):
        calls = []
        for block in _BLOCK.findall(text):
            fields = {key: escaped or value for key, escaped, value in _FIELD.findall(block)}
            tool = fields.pop("tool_name", "").strip()
            if tool:
                calls.append(tool_call(tool, fields))
        return calls

    def clean(self, text):
        return _BLOCK.sub("", text).rstrip()
