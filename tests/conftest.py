"""Fixtures of the tests that read the repository itself."""

import subprocess
from pathlib import Path

import pytest
from parity.seed import SEED

ROOT = Path(__file__).parents[1]


# Here and not in parity/: where several processes run the tests, the one that prints reads no more
# than this.
def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"parity: models drawn with TWINKLE_PARITY_SEED={SEED}")


@pytest.fixture(scope="session")
def tracked():
    """tracked(*patterns): paths of git's index, and new ones that git does not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")

    def listed(*patterns):
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [path for path in map(Path, found.stdout.splitlines()) if (ROOT / path).is_file()]

    return listed
