"""The Makefile and its scripts, as far as they can be checked without building anything."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci/run"]
PROFILES = ["base", "demo", "test", "lint"]


def run(*command, **options):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


@pytest.mark.parametrize("target", "setup build demo test bench lint format soak clean".split())
def test_make_alone_lists_the_target(target):
    shown = run("make", "--no-print-directory")
    assert re.search(rf"^{target} ", shown.stdout, re.MULTILINE), shown.stdout + shown.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_script_is_executable_and_parses(script):
    assert script.stat().st_mode & stat.S_IXUSR
    assert run("bash", "-n", script).returncode == 0


def test_every_script_that_the_makefile_calls_exists():
    called = set(re.findall(r"scripts/\w+\.sh", (ROOT / "Makefile").read_text()))
    assert called
    assert all((ROOT / script).is_file() for script in called)


def test_a_set_up_that_was_done_is_not_done_again():
    if not all((ROOT / f".venv/.setup-{profile}").exists() for profile in PROFILES):
        pytest.skip("the environment was not made by `make setup`")
    # With no tool on PATH but the shell's own, anything that set-up would do fails.
    result = run("scripts/setup.sh", *PROFILES)
    assert result.returncode == 0
    assert result.stdout == ""


def copy_of_the_scripts(folder, with_tools):
    """A checkout without .venv, and a PATH that holds only the named tools."""
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, folder / name)
    tools = folder / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "sort", "head", "cut", "sed", "dirname", "id", "sha256sum", "env"):
        (tools / tool).symlink_to(shutil.which(tool))
    for name, prints in with_tools.items():
        (tools / name).write_text(f"#!/bin/bash\necho '{prints}'\n")
        (tools / name).chmod(0o755)
    return {**os.environ, "PATH": str(tools), "HOME": str(folder)}


def test_set_up_names_everything_that_is_missing_and_how_to_get_it(tmp_path):
    environment = copy_of_the_scripts(tmp_path, {})
    result = run(tmp_path / "scripts/setup.sh", "base", env=environment)
    assert result.returncode == 1
    for text in (
        "g++ 12 or newer was not found: Debian package g++",
        "cmake 3.25 or newer was not found: Debian package cmake",
        "rustc 1.80 or newer was not found: Debian 12's own is 1.63; install rustup",
        "cargo was not found",
        "Python 3.11 or 3.12 with venv and headers was not found",
    ):
        assert text in result.stderr
    assert not (tmp_path / ".venv").exists()


def test_set_up_refuses_tools_that_are_too_old(tmp_path):
    old = {"g++": "11.4.0", "cmake": "cmake version 3.22.1", "rustc": "rustc 1.63.0 (4b91a6ea7)"}
    environment = copy_of_the_scripts(tmp_path, old)
    result = run(tmp_path / "scripts/setup.sh", "base", env=environment)
    assert result.returncode == 1
    assert "g++ is 11.4.0, it must be 12 or newer" in result.stderr
    assert "cmake is 3.22.1, it must be 3.25 or newer" in result.stderr
    assert "rustc is 1.63.0, it must be 1.80 or newer" in result.stderr


# A Python whose pip installs everything but the CUDA compiler, and notes what it was asked for.
PYTHON = """#!/bin/bash
case "$*" in
  "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *requirements/*) echo "$*" >> pip.log; [[ "$*" != *cuda.txt* ]] ;;
esac
"""


def test_a_cuda_compiler_that_did_not_install_is_said_once_and_not_tried_again(tmp_path):
    environment = copy_of_the_scripts(tmp_path, {})
    for tool in ("mkdir", "cp"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool))
    (tmp_path / "tools/python3.11").write_text(PYTHON)
    (tmp_path / "tools/python3.11").chmod(0o755)
    log = tmp_path / "pip.log"

    def set_up():
        log.unlink(missing_ok=True)
        result = run(tmp_path / "scripts/setup.sh", "lint", "cuda", env=environment)
        assert result.returncode == 0, result.stderr
        asked = re.findall(r"-r requirements/(\w+)\.txt", log.read_text()) if log.exists() else []
        return asked, result.stdout, result.stderr

    asked, out, error = set_up()
    assert asked == ["lint", "cuda"] and out.endswith("setup: ready: lint\n")
    assert "setup: no CUDA compiler" in error and "rm .venv/.setup-cuda" in error
    assert set_up() == ([], "", "")
    with (tmp_path / "requirements/cuda.txt").open("a") as file:
        file.write("# another list\n")
    assert set_up()[0] == ["cuda"]
    (tmp_path / ".venv/.setup-cuda").unlink()
    assert set_up()[0] == ["cuda"]


def test_set_up_refuses_a_profile_that_does_not_exist():
    result = run("scripts/setup.sh", "nothing")
    assert result.returncode == 2
    assert "no profile nothing" in result.stderr


def test_every_requirement_is_pinned():
    constraints = (ROOT / "requirements/constraints.txt").read_text()
    pinned = {
        name.lower().replace("_", "-") for name in re.findall(r"^([\w-]+)==", constraints, re.M)
    }
    wanted = set()
    for path in (ROOT / "requirements").glob("*.txt"):
        if path.stem != "constraints" and not path.stem.endswith("-alone"):
            wanted |= set(re.findall(r"^([\w-]+)", path.read_text(), re.M))
    assert wanted <= pinned


def test_the_version_stands_in_one_place():
    stated = re.search(r"set\(TWINKLE_VERSION ([0-9.]+)\)", (ROOT / "CMakeLists.txt").read_text())
    assert stated
    assert stated[1] not in (ROOT / "pyproject.toml").read_text()
