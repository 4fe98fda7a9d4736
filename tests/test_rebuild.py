"""After a change of one file, one file is compiled: asked of build/release without building."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/release"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """plan(): what ninja would do now, one line a step."""
    if not (BUILD / "build.ninja").exists():
        pytest.skip("build/release is not there: run make build")
    # Without the step that looks for new files: a dry run ends after it.
    text = (BUILD / "build.ninja").read_text()
    text, count = re.subn(r"^build build\.ninja: RERUN_CMAKE.*?\n\n", "", text, flags=re.M | re.S)
    assert count == 1
    file = tmp_path_factory.mktemp("plan") / "build.ninja"
    file.write_text(text)
    ninja = shutil.which("ninja")

    def steps():
        command = [ninja, "-C", BUILD, "-f", file, "-n", "all"]
        shown = subprocess.run(command, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stdout + shown.stderr
        return {
            line.split("] ", 1)[1] for line in shown.stdout.splitlines() if line.startswith("[")
        }

    assert not steps(), "build/release is not up to date: run make build"
    return steps


def after_change(plan, path):
    """The plan if the file had been written just now; its time stamp is put back."""
    source = ROOT / path
    stamp = source.stat()
    os.utime(source, (time.time() + 1, time.time() + 1))
    try:
        return plan()
    finally:
        os.utime(source, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def ninja(*arguments):
    if not (BUILD / "build.ninja").exists():
        pytest.skip("build/release is not there: run make build")
    shown = subprocess.run(["ninja", "-C", BUILD, *arguments], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


def test_nothing_but_linking_waits_for_cargo():
    shown = ninja("-t", "query", "rust/release/libtwinkle_text.a")
    outputs = shown.split("outputs:")[1].split()
    assert "twinkle" in outputs and any(name.startswith("_core") for name in outputs)
    waiting = [name for name in outputs if "order_depends" in name or name.endswith((".o", ".a"))]
    assert not waiting


def parts(source):
    """The files that one compiled as one with others includes; of any other: itself."""
    if "/Unity/" not in source:
        return [source]
    return re.findall(r'^#include "(.*)"$', Path(source).read_text(), re.MULTILINE)


def test_the_demo_compiles_no_test_and_nothing_twice():
    commands = ninja("-t", "commands", "twinkle_product").splitlines()
    sources = [re.search(r" -c (\S+)", line)[1] for line in commands if " -c " in line]
    sources = [part for path in sources if path.startswith(f"{ROOT}/") for part in parts(path)]
    assert f"{ROOT}/twinkle/engine/engine.cpp" in sources
    assert not [path for path in sources if "test" in Path(path).relative_to(ROOT).as_posix()]
    assert len(sources) == len(set(sources))


def ends(steps, kind):
    return sorted(re.split(r"[ /]", step)[-1] for step in steps if kind in step)


def test_a_changed_source_file_alone_is_compiled_and_what_holds_it_is_linked(plan):
    steps = after_change(plan, "twinkle/loss/cross_entropy.cpp")
    assert ends(steps, "Building CXX") == ["cross_entropy.cpp.o"]
    assert ends(steps, "static library") == ["libtwinkle_loss.a"]
    linked = set(ends(steps, "executable"))
    assert {"loss_test", "engine_test", "twinkle"} <= linked
    assert not linked & {"base_test", "io_test", "nn_test", "kernels_test", "optim_test"}
    assert not plan()


def test_a_changed_test_compiles_its_unit_and_links_its_program_alone(plan):
    steps = after_change(plan, "twinkle/loss/cross_entropy_test.cpp")
    assert ends(steps, "Building CXX") == ["unity_0_cxx.cxx.o"]
    assert ends(steps, "Linking") == ["loss_test"]


def test_the_precompiled_header_is_not_compiled_again(plan):
    assert "cmake_pch" in (BUILD / "build.ninja").read_text()
    for path in ("twinkle/loss/loss.h", "twinkle/engine/engine.h"):
        steps = after_change(plan, path)
        assert steps
        assert not [step for step in steps if "pch" in step]
