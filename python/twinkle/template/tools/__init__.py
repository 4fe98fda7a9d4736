"""How models write tool calls into their text: one file per format, one line here."""

from twinkle.template.tools.base import ToolCallParser, ToolCallRegistry
from twinkle.template.tools.cline import ClineParser
from twinkle.template.tools.hermes_qwen import HermesQwenParser
from twinkle.template.tools.react import ReActParser
from twinkle.template.tools.vcp import VCPParser

# The order in which they are asked: those with marks of their own come before looser ones.
for _parser in (HermesQwenParser, ClineParser, VCPParser, ReActParser):
    ToolCallRegistry.register(_parser())

__all__ = [
    "ClineParser",
    "HermesQwenParser",
    "ReActParser",
    "ToolCallParser",
    "ToolCallRegistry",
    "VCPParser",
]
