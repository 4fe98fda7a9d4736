"""An hour of many tenants on one engine, TWINKLE_SOAK_SECONDS shortens it; and drawn schedules."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "build/release/engine_soak"
# Events that must have happened in it.
HAPPENED = (
    "full",  # tenants that trained every weight
    "cancelled",
    "recomputed_layers",  # the limit on activations
    "heard_tokens",  # streamed
    "pinned_samples",  # samples of a published version
    "shared_tokens",  # tokens of prompts, by the prefix cache
    "returns",  # returns of parked tenants
)


@pytest.mark.soak
def test_memory_stays_flat_to_one_percent_and_every_tenant_ends_as_it_does_alone(capfd):
    if not PROGRAM.exists():
        pytest.skip("engine_soak is not built: make build")
    seconds = float(os.environ.get("TWINKLE_SOAK_SECONDS", "3600"))
    with capfd.disabled():  # how far it is, every minute
        result = subprocess.run([PROGRAM, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert result.returncode == 0, result.stdout
    figures = json.loads(result.stdout.splitlines()[-1])
    print(figures)
    assert figures["last_mib"] <= 1.01 * figures["first_mib"], figures
    assert figures["slope_mib_an_hour"] * seconds / 3600 <= 0.01 * figures["first_mib"], figures
    assert [name for name in HAPPENED if figures[name] == 0] == []


@pytest.mark.soak
def test_ten_times_as_many_schedules_of_tenants_and_groups_as_in_ci_give_a_serial_references_bits():
    program = ROOT / "build/release/engine_test"
    if not program.exists():
        pytest.skip("engine_test is not built: make build")
    drawn = "--gtest_filter=*Schedules.*:KeptPasses.*:*GroupsOf.*"
    ran = subprocess.run(
        [program, drawn], env={**os.environ, "TWINKLE_DRAWS": "10"}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert "[  PASSED  ] 11 tests." in ran.stdout
