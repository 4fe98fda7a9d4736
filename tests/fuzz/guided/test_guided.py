"""libFuzzer on the readers of requests and of the journal, 5 s each over what earlier runs kept;
longer in make soak."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
READERS = re.findall(
    r"^FUZZ\((\w+)\)$", (ROOT / "tests/fuzz/guided/readers.def").read_text(), re.MULTILINE
)


@pytest.fixture(scope="module")
def fuzz():
    """fuzz(reader, seconds): the result of scripts/fuzz.sh, whose first call builds."""
    if not shutil.which("clang++-19"):
        pytest.skip("clang++-19 is not installed: make test installs it as root")
    if not all(map(shutil.which, ("cmake", "ninja", "cargo"))):
        pytest.skip("no cmake, ninja or cargo: make setup")

    def run(reader, seconds):
        command = ["env", f"TWINKLE_FUZZ_SECONDS={seconds}", ROOT / "scripts/fuzz.sh", reader]
        return subprocess.run(command, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_withstands_cases_that_were_made_to_reach_its_code_slow(reader, fuzz):
    result = fuzz(reader, 5)
    told = result.stdout + result.stderr
    assert result.returncode == 0, told[-6000:]
    assert int(re.search(r"stat::number_of_executed_units: +(\d+)", told)[1]) > 100, told[-2000:]


def test_a_reader_that_does_not_exist_is_refused(fuzz):
    assert "guided READER SECONDS" in fuzz("absent", 1).stderr


def test_without_the_compiler_it_is_named_and_nothing_passes(tmp_path):
    environment = {"PATH": str(tmp_path)}
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    result = subprocess.run(
        [shutil.which("bash"), ROOT / "scripts/fuzz.sh"],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 3
    assert "Debian packages clang-19 libclang-rt-19-dev" in result.stderr


def test_what_is_guided_is_among_the_readers_of_the_other_fuzzer():
    others = (ROOT / "tests/fuzz/readers.def").read_text()
    assert READERS and all(f"FUZZ({reader})\n" in others for reader in READERS)
