#!/usr/bin/env bash
# test.sh: ctest, then pytest, both even when the first fails; fails when either does.
# TWINKLE_TEST_DATA names the folder of real data; tests that need it are skipped, with the reason, without it.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0

ctest --test-dir build/release --output-on-failure --no-tests=error -j2 || status=1

.venv/bin/python -m pytest -rs python/tests tests || status=1
exit $status
