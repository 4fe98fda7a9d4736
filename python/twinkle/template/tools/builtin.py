"""The formats of the C++ core: how each writes is said in twinkle/text/tools."""

import functools

from twinkle.core import core
from twinkle.template.tools.base import ToolCallParser


class BuiltinParser(ToolCallParser):
    """A format of the core, by its name there."""

    core_name = ""

    @functools.cached_property
    def _format(self):
        return core().tool_format(self.core_name)

    def detect(self, text):
        return self._format.detect(text)

    def parse(self, text):
        return self._format.parse(text)

    def clean(self, text):
        return self._format.clean(text)

    def extract_tool_result(self, text):
        return self._format.extract_tool_result(text)


class HermesQwenParser(BuiltinParser):
    """{"name": ..., "arguments": {...}} or <function=name><parameter=key>value</parameter>
    </function> between <tool_call> and </tool_call>; the last block may lack its end."""

    name = core_name = "hermes_qwen"
    open_marker, close_marker = "<tool_call>", "</tool_call>"


class ClineParser(BuiltinParser):
    """<read_file><path>a.py</path></read_file>: the tool is the outer element, each argument an
    inner one, as text. An element without inner ones is no call."""

    name = core_name = "cline"


class VCPParser(BuiltinParser):
    """key:「始」value「末」 lines between the two marks of a request; tool_name is the tool, the
    others are its arguments, as text."""

    name = core_name = "vcp"


class ReActParser(BuiltinParser):
    """`Action: name[text]`, or `Action: name` and below it `Action Input: text`. The arguments are
    {"input": text}; those of an Action Input that is a JSON object are that object."""

    name = core_name = "react"
