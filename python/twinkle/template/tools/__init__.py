"""How models write tool calls into their text: the built-in formats, and those of scripts."""

from twinkle.template.tools.base import ToolCallParser, ToolCallRegistry
from twinkle.template.tools.builtin import ClineParser, HermesQwenParser, ReActParser, VCPParser

# The order in which they are asked: those with marks of their own come before looser ones.
for _parser in (HermesQwenParser, ClineParser, VCPParser, ReActParser):
    ToolCallRegistry.register(_parser())

__all__ = [
    "ClineParser", "HermesQwenParser", "ReActParser", "ToolCallParser", "ToolCallRegistry",
    "VCPParser",
]  # fmt: skip
