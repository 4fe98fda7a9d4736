"""Writes docs/without-effect.md from the package's one table of arguments that change nothing:
without_effect.py [--check]. With --check it writes nothing and exits with 1 if the page is another.
"""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/without-effect.md"
TABLE = ROOT / "python/twinkle/without_effect.py"
HEAD = """# Arguments without effect

Scripts for other engines give these arguments. Twinkle takes them, and they change nothing. What
would change a result and cannot be honoured is refused by its name. `tools/without_effect.py` makes
this page.

| where | argument | why it has no effect |
|---|---|---|
"""


def page(table):
    return HEAD + "".join(
        f"| `{where}` | `{argument}` | {why} |\n"
        for where, arguments in table.items()
        for argument, why in arguments.items()
    )


def main():
    made = page(runpy.run_path(str(TABLE))["WITHOUT_EFFECT"])
    if sys.argv[1:] == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text() != made)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
