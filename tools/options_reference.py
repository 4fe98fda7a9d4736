"""Writes docs/options.md from the options that the built program declares: options_reference.py
[--check]. With --check it writes nothing and exits with 1 if the page is another. Where the
program is not built, there is nothing to compare with: cli_test does it too."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/options.md"
PROGRAM = ROOT / "build/release/twinkle"


def main():
    if not PROGRAM.exists():
        print(f"options_reference: {PROGRAM} is not built, docs/options.md is as it was")
        return 0
    call = [PROGRAM, "serve", "--print-reference"]
    page = subprocess.run(call, check=True, capture_output=True, text=True).stdout
    if sys.argv[1:] == ["--check"]:
        return int(PAGE.read_text() != page)
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
