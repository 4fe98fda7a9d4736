#!/usr/bin/env bash
# test.sh [--soak]: ctest, then pytest, both even when the first fails; fails when either does.
# With --soak only the tests that are marked as too long for CI.
# TWINKLE_TEST_DATA names the folder of real data; tests that need it are skipped, with the reason, without it.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0

if [ "${1:-}" = --soak ]; then
  exec .venv/bin/python -m pytest -rs -m soak python/tests tests
fi
ctest --test-dir build/release --output-on-failure --no-tests=error -j2 || status=1
.venv/bin/python -m pytest -rs python/tests tests || status=1
exit $status
