"""Templates: conversations to tokens and labels, and back."""

from twinkle.errors import later
from twinkle.template.template import Qwen3_5Template, Template

__all__ = ["Qwen3_5Template", "Template"]

__getattr__ = later(
    __name__,
    {
        "DeepseekV4Template": "the family DeepSeek-V4",
        "Gemma4Template": "multimodal models",
        "Qwen2_5VLTemplate": "multimodal models",
    },
)
