"""The arguments that training scripts share: `args = CLI.from_args()`."""

from twinkle.cli.arguments import Args
from twinkle.cli.config import CLI

__all__ = ["CLI", "Args"]
