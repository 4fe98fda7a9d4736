"""The Action lines of ReAct (Yao et al. 2023)."""

import re

from twinkle.template.tools.base import SpanParser, json_or, tool_call

_ACTION = re.compile(
    r"^[ \t]*Action[ \t]*:[ \t]*(?P<name>[\w./-]+)[ \t]*"
    r"(?:\[(?P<inside>.*?)\][ \t]*$|\n[ \t]*Action Input[ \t]*:[ \t]*(?P<below>.*)$)\n?",
    re.MULTILINE,
)
_RESULT = re.compile(r"\s*Observation[ \t]*:[ \t]*(.*)", re.DOTALL)


class ReActParser(SpanParser):
    """`Action: name[text]`, or `Action: name` and below it `Action Input: text`. The arguments are
    {"input": text}; those of an Action Input that is a JSON object are that object."""

    name = "react"

    def spans(self, text):
        return ((*found.span(), _call(found)) for found in _ACTION.finditer(text))

    def extract_tool_result(self, text):
        found = _RESULT.fullmatch(text)
        return found and found[1]


def _call(found):
    if found["inside"] is not None:
        return tool_call(found["name"], {"input": found["inside"]})
    below = found["below"].strip()
    arguments = json_or(below, None)
    return tool_call(found["name"], arguments if isinstance(arguments, dict) else {"input": below})
