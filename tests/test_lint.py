"""Format and style of the whole repository, as `make lint` checks them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATH = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"


@pytest.fixture(scope="module", autouse=True)
def linters():
    for tool in ("clang-format", "ruff"):
        if not shutil.which(tool, path=PATH):
            pytest.skip(f"{tool} is not installed: make lint installs it")


def lint(root, *options):
    return subprocess.run(
        [root / "scripts/lint.sh", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": PATH},
    )


def test_the_repository_passes_make_lint():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "file, text", [("a.cpp", "int  f( ) {return 1;}\n"), ("a.py", "import os\nx  = 1\n")]
)
def test_what_is_not_formatted_fails(tmp_path, file, text):
    for name in ("scripts", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in (".clang-format", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "twinkle").mkdir()
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert lint(tmp_path).returncode == 0
    (tmp_path / file).write_text(text)
    result = lint(tmp_path)
    assert result.returncode == 1
    assert file in result.stdout + result.stderr
    assert lint(tmp_path, "--fix").returncode == 0, "as `make format` does"
    assert lint(tmp_path).returncode == 0
    assert (tmp_path / file).read_text() not in ("", text)


def test_the_pre_commit_hook_is_what_make_lint_calls():
    hook = re.search(r"entry: (\S+)", (ROOT / ".pre-commit-config.yaml").read_text())[1]
    assert f"@{hook}\n" in (ROOT / "Makefile").read_text()
