"""Templates: conversations to tokens and labels, and back."""

from twinkle.template.template import Qwen3_5Template, Template

__all__ = ["Qwen3_5Template", "Template"]
