"""Calls as XML elements named after the tool, as Cline and its kin write them."""

import re

from twinkle.template.tools.base import SpanParser, blocks, tool_call

_BEGIN = re.compile(r"<([a-z][a-z0-9_]*)>")
_END = re.compile(r"</[a-z][a-z0-9_]*>")
_RESULT = re.compile(r"\[([a-z][a-z0-9_]*) for '[^']*'\]\s*Result:\s*", re.DOTALL)
# Elements that are no tools: parts of a conversation, of other formats, and of HTML.
_NO_TOOLS = frozenset(
    "think answer reasoning_content system user assistant message messages content response output "
    "role tool tools tool_call tool_response function parameter parameters "
    "html head body p a b i u em strong div span pre code br hr ul ol li h1 h2 h3 h4 h5 h6 table "
    "tr td th tbody thead img video audio svg form section article".split()
)


class ClineParser(SpanParser):
    """<read_file><path>a.py</path></read_file>: the tool is the outer element, each argument an
    inner one, as text. An element without inner ones is no call."""

    name = "cline"

    def spans(self, text):
        for found, inner, end in _elements(text):
            arguments = {key[1]: value.strip() for key, value, _ in _elements(inner)}
            if arguments and found[1] not in _NO_TOOLS:
                yield found.start(), end, tool_call(found[1], arguments)

    def extract_tool_result(self, text):
        found = _RESULT.match(text)
        return text[found.end() :] if found else None


def _elements(text):
    return blocks(text, _BEGIN, _END, lambda found: f"</{found[1]}>")
