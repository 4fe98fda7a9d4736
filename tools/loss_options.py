"""Writes python/twinkle/loss/options.json, of which the loss classes are made: options and
arguments, from the table of losses of the built engine: loss_options.py [--check]. With --check it
writes nothing and exits with 1 if the file is another. Where the engine is not built, there is
nothing to compare with."""

import sys
from pathlib import Path

from twinkle.core import core
from twinkle.errors import NotAvailableError

FILE = Path(__file__).parents[1] / "python/twinkle/loss/options.json"


def main():
    try:
        table = core().loss_table()
    except NotAvailableError:
        print(f"loss_options: the engine is not built, {FILE.name} is as it was")
        return 0
    if sys.argv[1:] == ["--check"]:
        return int(FILE.read_text() != table)
    FILE.write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
