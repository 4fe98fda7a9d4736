"""The presets that `make test` does not build still configure, with the flags that they are for."""

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, **environment):
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


def skip_without_tools():
    pytest.importorskip("torch")
    if not all(map(shutil.which, ("cmake", "ninja", "g++", "cargo"))):
        pytest.skip("no cmake, ninja, g++ or cargo: make setup")


def configured(preset):
    """The folder of a preset, and {source: the words of its compile command}. It is kept, as its
    compiler's cache knows files by their places."""
    skip_without_tools()
    run("scripts/preset.sh", preset)
    folder = ROOT / "build" / preset
    commands = json.loads((folder / "compile_commands.json").read_text())
    return folder, {
        str(Path(command["file"]).relative_to(ROOT)): command["command"].split()
        for command in commands
        if not Path(command["file"]).is_relative_to(folder)  # the precompiled header's
    }


def test_the_debug_preset_configures_and_builds_a_program_with_its_assertions():
    folder, commands = configured("debug")
    one = commands["twinkle/base/json.cpp"]
    assert "-g" in one and "-DNDEBUG" not in one and "-O3" not in one
    for source, command in commands.items():
        assert {"-Wall", "-Wextra", "-Werror"} <= set(command), source
    for source in ("twinkle/nn/linear.cpp", "twinkle/engine/engine.cpp"):
        assert [word for word in commands[source] if "cmake_pch" in word], source
    rules = (folder / "CMakeFiles/rules.ninja").read_text()
    compiling = re.findall(r"^ *command = (.* -c \$in)$", rules, re.MULTILINE)
    assert compiling
    if shutil.which("ccache"):
        assert all(re.match(r"env CCACHE_SLOPPINESS=\S+ \S*/ccache \S", c) for c in compiling)
    run("scripts/preset.sh", "debug", "base_test")
    assert "[  PASSED  ]" in run(folder / "base_test")


@pytest.mark.parametrize(
    ("preset", "flag"),
    [("sanitizers", "-fsanitize=address,undefined"), ("tsan", "-fsanitize=thread")],
)
def test_the_presets_of_the_sanitizers_compile_everything_with_theirs(preset, flag):
    _, commands = configured(preset)
    assert "twinkle/base/json.cpp" in commands and "twinkle/engine/engine.cpp" in commands
    for source, command in commands.items():
        assert flag in command and "-fno-omit-frame-pointer" in command, source


@pytest.fixture(scope="module")
def tsan():
    """The folder of the programs under ThreadSanitizer. It is kept: they take minutes to build."""
    skip_without_tools()
    run("scripts/preset.sh", "tsan", "schedule_test", "service_test")
    return ROOT / "build/tsan"


# One thread's work on much memory; `make soak` has these under ThreadSanitizer, too.
SLOW_AND_ALONE = "ForwardBackwardRequest.*:Zstd.*:HistoryTest.KillsAtAny*:WaitingTest.*:Anything.*"
PARTS = 2  # each program's tests run in parts at the same time: few tests are left by then


@pytest.mark.parametrize(
    ("program", "suites"),
    [("schedule_test", ["SamplingThreads", "Led"]), ("service_test", ["HttpServer"])],
)
def test_scheduling_and_the_service_have_no_data_race_slow(program, suites, tsan):
    """Over a null model, without torch, under ThreadSanitizer: engine and sampler's scheduling, and
    the service with its connections and its journal's writer; more programs in make soak."""
    options = f"suppressions={ROOT / 'scripts/tsan.supp'} halt_on_error=1"
    filtered = {"GTEST_FILTER": f"-{SLOW_AND_ALONE}"}

    def part(index):
        of_all = {"GTEST_TOTAL_SHARDS": str(PARTS), "GTEST_SHARD_INDEX": str(index), **filtered}
        return run(tsan / program, TSAN_OPTIONS=options, **of_all)

    with ThreadPoolExecutor(PARTS) as threads:
        told = list(threads.map(part, range(PARTS)))
    assert all("[  PASSED  ]" in each for each in told)
    assert [suite for suite in suites if suite not in "".join(told)] == []
