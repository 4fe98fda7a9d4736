"""The arguments that training scripts share: `args = CLI.from_args()`."""

from twinkle.cli.arguments import Args
from twinkle.cli.config import CLI
from twinkle.cli.table import INERT

__all__ = ["CLI", "INERT", "Args"]
