"""An hour of many tenants on one engine; TWINKLE_SOAK_SECONDS shortens it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "build/release/engine_soak"


@pytest.mark.soak
def test_memory_stays_flat_to_one_percent_and_every_tenant_ends_as_it_does_alone():
    if not PROGRAM.exists():
        pytest.skip("engine_soak is not built: make build")
    seconds = float(os.environ.get("TWINKLE_SOAK_SECONDS", "3600"))
    result = subprocess.run([PROGRAM, str(seconds)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    print(figures)
    assert figures["last_mib"] <= 1.01 * figures["first_mib"], figures
    assert figures["slope_mib_an_hour"] * seconds / 3600 <= 0.01 * figures["first_mib"], figures
    assert figures["returns"] > 0, "the engine's limit on what is resident was never reached"
