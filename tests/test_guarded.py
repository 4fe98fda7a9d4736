"""GUARDED_BY and REQUIRES of twinkle/base/guarded.h are obeyed, says the analysis of clang."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MARKS = "twinkle/base/guarded.h"


@pytest.fixture(scope="module")
def analyse():
    """analyse(folder, files): the result of clang's analysis of C++ files, compiled as one: torch's
    headers take most of the time. The one file is written into folder."""
    tidy = shutil.which("clang-tidy", path=f"{ROOT / '.venv/bin'}:{os.environ['PATH']}")
    if not tidy:
        pytest.skip("clang-tidy is not installed: make lint installs it")

    torch = Path(importlib.util.find_spec("torch").origin).parent / "include"

    def run(folder, files):
        one = folder / "one.cpp"
        one.write_text("".join(f'#include "{path}"\n' for path in files))
        checks = [
            "--allow-no-checks",
            "--checks=-*,clang-diagnostic-thread-safety*",
            "--warnings-as-errors=*",
            "--header-filter=.*",  # else only one.cpp itself is looked at
        ]
        flags = ["-std=c++20", "-Wthread-safety", f"-I{ROOT}", f"-isystem{torch}"]
        flags += [f"-isystem{torch / 'torch/csrc/api/include'}"]
        command = [tidy, "--quiet", *checks, one, "--", *flags]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)

    return run


def includes(path):
    return set(re.findall(r'#include "(twinkle/[^"]+)"', (ROOT / path).read_text()))


def test_guarded_members_are_touched_with_their_mutex_held(analyse, tracked, tmp_path):
    marked = {str(path) for path in tracked("twinkle/*.h") if MARKS in includes(path)}
    users = [p for p in tracked("twinkle/*.cpp") if includes(p) & (marked | {MARKS})]
    users = [p for p in users if not p.name.endswith("_test.cpp")]
    assert users
    result = analyse(tmp_path, [ROOT / path for path in users])
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_guarded_member_touched_without_its_mutex_is_found(analyse, tmp_path):
    breach = tmp_path / "breach.cpp"
    breach.write_text(
        f'#include "{MARKS}"\n'
        "struct Count {\n"
        "  twinkle::Mutex mutex;\n"
        "  int value GUARDED_BY(mutex) = 0;\n"
        "  void right() { twinkle::Lock lock(mutex); ++value; }\n"
        "  void wrong() { ++value; }\n"
        "};\n"
    )
    result = analyse(tmp_path, [breach])
    assert result.returncode != 0
    assert len(re.findall(r"requires holding mutex", result.stdout)) == 1
    assert "breach.cpp:6" in result.stdout
