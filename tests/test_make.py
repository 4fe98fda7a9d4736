"""The Makefile and its scripts, as far as they can be checked without building anything."""

import os
import re
import shutil
import stat
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci/run"]
PROFILES = re.search(  # as `make test` sets them up
    r"^test:.*\n\t@scripts/setup\.sh (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
)[1].split()


def run(*command, **options):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)


def test_make_alone_lists_every_target():
    targets = re.search(r"^\.PHONY: help (.*)$", text("Makefile"), re.MULTILINE)[1].split()
    shown = run("make", "--no-print-directory").stdout
    assert {"test-fast", "test", "soak"} <= set(targets)
    assert [line.split()[0] for line in shown.splitlines()] == ["help", *targets]


def test_every_script_is_executable_and_parses_and_those_that_make_calls_are_there():
    for script in SCRIPTS:
        assert script.stat().st_mode & stat.S_IXUSR, script
        assert run("bash", "-n", script).returncode == 0, script
    called = set(re.findall(r"scripts/\w+\.sh", text("Makefile")))
    assert called and called <= {str(script.relative_to(ROOT)) for script in SCRIPTS}


def text(path):
    return (ROOT / path).read_text()


def test_the_demo_runs_both_examples_and_with_arguments_the_first_alone(tmp_path):
    for folder in ("scripts", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/demo.sh", tmp_path / "scripts")
    (tmp_path / ".venv/bin/python").write_text("#!/bin/bash\necho $*\n")
    (tmp_path / ".venv/bin/python").chmod(0o755)
    both = ["examples/demo.py", "examples/service_demo.py"]
    assert run(tmp_path / "scripts/demo.sh").stdout.splitlines() == both
    alone = run(tmp_path / "scripts/demo.sh", "--epochs", "1").stdout.splitlines()
    assert alone == ["examples/demo.py --epochs 1"]
    assert all((ROOT / file).is_file() for file in both)


def test_ci_and_the_readme_run_the_tests_by_the_same_command():
    assert "make test" in (ROOT / ".ci/run").read_text().splitlines()
    assert re.search(r"^make test( +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_a_set_up_that_was_done_is_not_done_again():
    made = ROOT / ".venv/pyvenv.cfg"
    done = all((ROOT / f".venv/.setup-{profile}").exists() for profile in PROFILES)
    if not done or f"{ROOT}/.venv" not in made.read_text():
        pytest.skip("the environment was not made by `make test`, or for another folder")
    result = run("scripts/setup.sh", *PROFILES)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


def copy_of_the_scripts(folder, with_tools):
    """A checkout without .venv, and a PATH that holds `with_tools`: {name: what it prints}."""
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, folder / name)
    tools = folder / "tools"
    tools.mkdir()
    wanted = set("bash cat sort head tail grep cut sed dirname id sha256sum env nproc mv".split())
    for tool in wanted - set(with_tools):
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


# A preprocessor that has every header, and knows no version that is new enough.
OLD_BOOST = """#!/bin/bash
[ "$1" != -dumpfullversion ] || { echo 12.2.0; exit; }
while read -r line; do [ "$line" != "#error too old" ] || [ -z "$version" ] || exit 1
  [[ "$line" != *BOOST_VERSION* ]] || version=asked
done
"""


def test_set_up_refuses_a_boost_that_is_too_old(tmp_path):
    environment = copy_of_the_scripts(tmp_path, {"g++": ""})
    (tmp_path / "tools/g++").write_text(OLD_BOOST)
    result = run(tmp_path / "scripts/setup.sh", "base", env=environment)
    text = (
        "header boost/version.hpp is of a version that is too old: Debian package libboost1.81-dev"
    )
    assert text in result.stderr and "header gtest" not in result.stderr


# Debian's programs: g++ is installed, and what apt-get is asked for is noted.
DPKG_QUERY = '#!/bin/bash\n[ "${*: -1}" != g++ ] || echo -n installed\n'
APT_GET = '#!/bin/bash\necho "apt-get $*" >> apt.log\n'
# It has one of Boost's packages.
APT_CACHE = '#!/bin/bash\n[ "$2" = BOOST ]\n'


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("boost", ["libboost1.81-dev", "libboost-dev"])
def test_set_up_installs_system_packages_as_root_and_tells_others_the_command(uid, boost, tmp_path):
    environment = copy_of_the_scripts(tmp_path, {"id": uid})
    for name, text in (("dpkg-query", DPKG_QUERY), ("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
        (tmp_path / "tools" / name).write_text(text.replace("BOOST", boost))
        (tmp_path / "tools" / name).chmod(0o755)
    result = run(tmp_path / "scripts/setup.sh", "base", env=environment)
    assert result.returncode == 1  # the compiler is missing all the same
    log = tmp_path / "apt.log"
    missing = (
        "make cmake ninja-build ccache libgtest-dev libcli11-dev libprotozero-dev libyaml-dev "
        "libzstd-dev libspdlog-dev python3-venv python3-dev " + boost
    )
    told = f"system packages: sudo apt-get install {missing}\n"
    if uid == 0:
        install = f"apt-get install -y --no-install-recommends {missing}"
        assert log.read_text().splitlines() == ["apt-get update", install]
        assert f"setup: apt-get install {missing}\n" in result.stdout
        assert told not in result.stderr
    else:
        assert told in result.stderr
        assert not log.exists()


# The compiler itself reads these headers.
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize(
    ("version", "packages"), [("107400", "libboost-dev"), ("108300", ""), (None, "libboost-dev")]
)
def test_set_up_asks_apt_for_boost_only_where_none_is_new_enough(version, packages, tmp_path):
    environment = copy_of_the_scripts(tmp_path, {"id": 0})
    compiler = f'#!/bin/bash\nexec {shutil.which("g++")} -nostdinc "$@"\n'
    tools = {"dpkg-query": DPKG_QUERY, "apt-get": APT_GET, "g++": compiler}
    tools["apt-cache"] = APT_CACHE.replace("BOOST", "libboost-dev")
    for name, text in tools.items():
        (tmp_path / "tools" / name).write_text(text)
        (tmp_path / "tools" / name).chmod(0o755)
    headers = tmp_path / "include/boost"
    headers.mkdir(parents=True)
    if version is not None:
        (headers / "json.hpp").write_text("")  # it does not tell Boost's version
        (headers / "version.hpp").write_text(f"#define BOOST_VERSION {version}\n")
    environment["CPATH"] = str(headers.parent)
    result = run(tmp_path / "scripts/setup.sh", "base", env=environment)
    install = (tmp_path / "apt.log").read_text().splitlines()[-1]
    assert " ".join(word for word in install.split() if "boost" in word) == packages
    assert ("boost/version.hpp is of a version" in result.stderr) == (version == "107400")


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


def test_a_set_up_replaces_its_stamp_and_leaves_that_of_a_linked_copy_alone(tmp_path):
    environment = copy_of_the_scripts(tmp_path, {})
    for tool in ("mkdir", "cp"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool))
    (tmp_path / "tools/python3.11").write_text(PYTHON)
    (tmp_path / "tools/python3.11").chmod(0o755)
    stamp, copy = tmp_path / ".venv/.setup-lint", tmp_path / "copy"
    run(tmp_path / "scripts/setup.sh", "lint", env=environment)
    os.link(stamp, copy)
    before = copy.read_text()
    with (tmp_path / "requirements/lint.txt").open("a") as file:
        file.write("# another list\n")
    assert run(tmp_path / "scripts/setup.sh", "lint", env=environment).returncode == 0
    assert copy.read_text() == before != stamp.read_text()


@pytest.mark.parametrize(("uid", "ends"), [(0, 0), (0, 1), (1000, 0)])
def test_the_fuzzers_compiler_is_installed_where_that_can_be_and_is_not_needed(uid, ends, tmp_path):
    environment = copy_of_the_scripts(tmp_path, {"id": uid})
    for tool in ("mkdir", "cp"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool))
    for name, text in (("python3.11", PYTHON), ("apt-get", APT_GET + f"exit {ends}\n")):
        (tmp_path / "tools" / name).write_text(text)
        (tmp_path / "tools" / name).chmod(0o755)
    result = run(tmp_path / "scripts/setup.sh", "test", env=environment)
    assert result.returncode == 0, result.stderr
    packages = "clang-19 libclang-rt-19-dev"
    log = tmp_path / "apt.log"
    asked = log.read_text().splitlines() if log.exists() else []
    install = f"apt-get install -y --no-install-recommends {packages}"
    assert asked == ([] if uid else ["apt-get update", install][: 1 if ends else 2])
    told = f"clang++-19 was not found: Debian packages {packages}" in result.stderr
    assert told == (uid != 0 or ends != 0)


@pytest.mark.parametrize("card", [True, False])
def test_the_demo_takes_the_cuda_compiler_only_where_a_card_is(card, tmp_path):
    environment = copy_of_the_scripts(tmp_path, {"nvidia-smi": ""} if card else {})
    if not card and list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a card")
    for tool in ("mkdir", "cp"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool))
    (tmp_path / "tools/python3.11").write_text(PYTHON)
    (tmp_path / "tools/python3.11").chmod(0o755)
    result = run(tmp_path / "scripts/setup.sh", "lint", "card", env=environment)
    assert result.returncode == 0, result.stderr
    asked = (tmp_path / "pip.log").read_text()
    assert ("cuda.txt" in asked) == card
    assert "Python packages of requirements/lint.txt (downloads 30 MB)" in result.stdout


def test_cargo_begins_before_the_cpp_compilers(tmp_path):
    """And next to them: the build does not wait for it before it links."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/build.sh", tmp_path / "scripts")
    for folder in ("rust/text/src", "build/release/stage", "python/twinkle", "tools", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("pyproject.toml", "CMakeLists.txt"):
        (tmp_path / file).touch()
    crate = tmp_path / "rust/text/src/lib.rs"
    crate.touch()
    os.utime(crate, (0, 0))
    (tmp_path / "fifo").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "fifo")
    # Cargo ends only when the build has begun, the build only when cargo has.
    for name, text in (
        ("cargo", "echo cargo >> ../../log; read line < ../../fifo"),
        ("cmake", 'case "$*" in *--build*) echo build >> log; echo go > fifo ;; esac'),
    ):
        (tmp_path / "tools" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "tools" / name).chmod(0o755)
    (tmp_path / ".venv/bin/python").symlink_to("/bin/true")
    environment = {**os.environ, "PATH": f"{tmp_path / 'tools'}:{os.environ['PATH']}"}
    result = run(tmp_path / "scripts/build.sh", "--without-tests", env=environment, timeout=20)
    assert result.returncode == 0, result.stderr
    assert sorted((tmp_path / "log").read_text().split()) == ["build", "cargo"]
    assert crate.stat().st_mtime > 0  # cargo's cache may have another clone's


def test_set_up_refuses_a_profile_that_does_not_exist():
    result = run("scripts/setup.sh", "nothing")
    assert result.returncode == 2
    assert "no profile nothing" in result.stderr


def test_the_examples_extra_brings_what_the_example_scripts_import():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["examples"]
    assert {"peft", "tqdm", "python-dotenv"} <= {re.match(r"[\w-]+", line)[0] for line in extra}


def fake_runners(folder, ctest_ends, pytest_ends):
    """Programs in the places of ctest and pytest, with these exit statuses."""
    environment = copy_of_the_scripts(folder, {})
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "build/release").mkdir(parents=True)
    for name in ("example_finetune", "engine_soak", "twinkle_with_faults"):
        (folder / "build/release" / name).touch(0o755)
    (folder / ".venv/bin/twinkle").touch(0o755)
    log = folder / "build/release/Testing/Temporary/LastTest.log"
    log.parent.mkdir(parents=True)
    log.write_text("[       OK ] A.A (1 ms)\n[  FAILED  ] A.B (1 ms)\n")
    for path, last, status in (
        (folder / "tools/ctest", "Total Test time (real) = 2.00 sec", ctest_ends),
        (folder / ".venv/bin/python", "=== 3 passed in 1.00s ===", pytest_ends),
    ):
        given = 'echo "$*" >> "$0.log"'
        path.write_text(f"#!/bin/bash\n{given}\necho first; echo '{last}'\nexit {status}\n")
        path.chmod(0o755)
    return environment


@pytest.mark.parametrize(("ctest_ends", "pytest_ends"), [(0, 0), (1, 0), (0, 1)])
def test_the_tests_end_with_the_runners_summary_and_before_it_the_time_of_all(
    ctest_ends, pytest_ends, tmp_path
):
    environment = fake_runners(tmp_path, ctest_ends, pytest_ends)
    result = run(tmp_path / "scripts/test.sh", env=environment)
    assert result.returncode == int(bool(ctest_ends or pytest_ends)), result.stderr
    *before, took, last = result.stdout.splitlines()
    again = ["test: what failed in ctest, once more:", "[  FAILED  ] A.B (1 ms)"]
    ctest = ["first", "Total Test time (real) = 2.00 sec", *(again if ctest_ends else [])]
    assert before == [*ctest, "first"]
    assert re.fullmatch(r"test: all of it took \d+ s", took)
    assert last == "=== 3 passed in 1.00s ==="
    given = (tmp_path / ".venv/bin/python.log").read_text().splitlines()[-1]
    assert given.startswith("-m pytest ") and "--durations=15 --durations-min=5" in given


def test_the_fast_tests_are_chosen_and_compile_nothing(tmp_path):
    environment = fake_runners(tmp_path, 0, 0)
    (tmp_path / "scripts/preset.sh").write_text("#!/bin/bash\ntouch built\n")
    assert run(tmp_path / "scripts/test.sh", "--fast", env=environment).returncode == 0
    left_out = (tmp_path / "tools/ctest.log").read_text().split(" --exclude-regex ")[1].strip()
    of = ["fuzz_json", "cuda_emulation_test_0", "nn_test_with_avx2", "engine_test", "io_test"]
    assert [name for name in of if not re.search(left_out, name)] == ["engine_test", "io_test"]
    given = (tmp_path / ".venv/bin/python.log").read_text().splitlines()[-1]
    assert "-m not soak and not processes" in given
    assert not (tmp_path / "built").exists()


PRESET = """#!/bin/bash
sleep 60 &
echo "$! $(nice) $*" >> builds
wait
"""
PYTEST = """#!/bin/bash
[ "$1" = -m ] || exit 0
until [ "$(grep -c . builds)" = 2 ]; do sleep 0.05; done
echo "=== 3 passed in 1.00s ==="
"""


def test_what_the_last_tests_run_is_compiled_next_to_the_others_and_ends_with_them(tmp_path):
    environment = fake_runners(tmp_path, 0, 0)
    (tmp_path / "scripts/preset.sh").write_text(PRESET)
    (tmp_path / ".venv/bin/python").write_text(PYTEST)
    for tool in ("nice", "sleep"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool))
    result = run(tmp_path / "scripts/test.sh", env=environment, timeout=50)
    assert result.returncode == 0, result.stderr
    begun = [line.split(" ", 1) for line in (tmp_path / "builds").read_text().splitlines()]
    assert sorted(told for _, told in begun) == [
        "19 fuzz guided",
        "19 tsan schedule_test service_test",
    ]

    def runs(process):  # and is no zombie that nobody has waited for
        status = Path(f"/proc/{process}/status")
        return status.exists() and "State:\tZ" not in status.read_text()

    end = time.monotonic() + 20
    while any(runs(process) for process, _ in begun):
        assert time.monotonic() < end, "they were not ended"
        time.sleep(0.05)


@pytest.mark.parametrize("missing", [".venv/bin/twinkle", "build/release/example_finetune"])
def test_the_tests_fail_where_the_build_left_something_out(missing, tmp_path):
    environment = fake_runners(tmp_path, 0, 0)
    (tmp_path / missing).unlink()
    result = run(tmp_path / "scripts/test.sh", env=environment)
    assert result.returncode == 1
    assert f"test: {missing} is not built" in result.stderr


@pytest.mark.parametrize("status", [0, 1])
def test_the_soak_ends_with_the_same_lines_and_pytests_status(status, tmp_path):
    environment = fake_runners(tmp_path, 0, status)
    result = run(tmp_path / "scripts/test.sh", "--soak", env=environment)
    assert result.returncode == status, result.stderr
    assert re.fullmatch(r"first\ntest: all of it took \d+ s\n=== .* ===\n", result.stdout)


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
