"""Too long for CI: eight processes, and whatever may happen to one of several."""

import os
import random
import signal
import time

import pytest
from parallel.processes import (
    alone,
    endless,
    ends_by_interrupt,
    sha256,
    the_others_say,
    together,
    wait_for_steps,
)

CHAOS_SECONDS = 1800
STEPS = 6


@pytest.mark.soak
def test_eight_processes_give_the_bits_of_one(tiny_llama_dir, tmp_path):
    one, several = tmp_path / "one", tmp_path / "several"
    told = alone("script.py", tiny_llama_dir, one, STEPS)
    assert together(8, "script.py", tiny_llama_dir, several, STEPS) == [told] * 8
    assert sha256(several / "last") == sha256(one / "last")


def killed(ranks, gone):
    ranks[gone].send_signal(signal.SIGKILL)
    return f"rank {gone} has gone"


def ended(ranks, gone):
    ranks[gone].send_signal(signal.SIGTERM)
    return f"rank {gone} was ended by SIGTERM"


def interrupted(ranks, gone):
    ranks[gone].send_signal(signal.SIGINT)
    return f"rank {gone} ({'|'.join(ends_by_interrupt(gone))})"


def stopped(ranks, gone):
    ranks[gone].send_signal(signal.SIGSTOP)
    return f"rank {gone} has been silent"


@pytest.mark.soak
def test_whatever_happens_to_a_rank_ends_all_the_others_by_its_name(tiny_llama_dir, tmp_path):
    """For TWINKLE_CHAOS_SECONDS; a failure names its seed."""
    end = time.monotonic() + float(os.environ.get("TWINKLE_CHAOS_SECONDS", CHAOS_SECONDS))
    seed = int(os.environ.get("TWINKLE_CHAOS_SEED", time.time()))
    while time.monotonic() < end:
        draw = random.Random(seed)
        size = draw.randint(2, 4)
        gone, what = draw.randrange(size), draw.choice([killed, ended, interrupted, stopped])
        print(f"TWINKLE_CHAOS_SEED={seed}: {what.__name__} {gone} of {size}", flush=True)
        with endless(size, tiny_llama_dir, tmp_path, TWINKLE_DIST_TIMEOUT_SECONDS="5") as ranks:
            wait_for_steps(ranks, 2)
            time.sleep(draw.random())
            the_others_say(ranks, gone, what(ranks, gone))
        seed += 1
