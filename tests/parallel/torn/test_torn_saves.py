"""A rank that is killed while the parts of a save are written: the folder of the save before is as
it was, and training goes on from it."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from parallel.processes import alone, endless, the_others_say, wait_for_steps

SIZE, HELD, STEPS = 3, 1, 3  # ranks, the one whose part is kept, and steps between two saves


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library that holds up a save."""
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler to build tests/parallel/torn/held.cpp with")
    out = tmp_path_factory.mktemp("held") / "held.so"
    source = Path(__file__).with_name("held.cpp")
    subprocess.run(["c++", "-std=c++20", "-shared", "-fPIC", "-o", out, source], check=True)
    return out


@pytest.fixture(scope="module")
def told(tiny_llama_dir, tmp_path_factory):
    """Losses and norms of an undisturbed run of twice as many steps."""
    return alone("script.py", tiny_llama_dir, tmp_path_factory.mktemp("whole"), 2 * STEPS)


def wait_until(happens, ranks, seconds=60):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, [rank.error()[-4000:] for rank in ranks]
        time.sleep(0.05)


def files_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("gone", [HELD, 0])
def test_a_rank_killed_between_the_parts_leaves_the_save_before(
    gone, library, told, tiny_llama_dir, tmp_path
):
    out, held = tmp_path / "out", tmp_path / "held"
    of_held = {"LD_PRELOAD": str(library), "HELD": str(held)}
    of_rank = {HELD: of_held}
    with endless(SIZE, tiny_llama_dir, out, of_rank=of_rank, SAVE=str(STEPS)) as ranks:
        wait_for_steps(ranks, STEPS)  # after the first save
        before = files_of(out / "last")
        assert f"training-{SIZE:05}-of-{SIZE:05}.safetensors" in before

        def parts():
            return sorted(file.name[9:14] for file in out.glob(".last.partial-*/training-*"))

        others = [f"{rank + 1:05}" for rank in range(SIZE) if rank != HELD]
        wait_until(lambda: held.exists() and parts() == others, ranks)
        ranks[gone].send_signal(signal.SIGKILL)
        held.unlink()  # where it lives, it writes on
        the_others_say(ranks, gone, f"mesh: rank {gone} has gone")
    assert files_of(out / "last") == before
    assert alone("script.py", tiny_llama_dir, out, STEPS, STEPS, out) == told[STEPS:]
    assert not list(out.glob(".last*")), "what a killed process leaves goes with the next save"
