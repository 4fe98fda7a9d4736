#!/usr/bin/env bash
# bench.sh ARGUMENTS...: runs bench/run.py, which writes bench/results/*.json and docs/benchmarks.md.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python bench/run.py "$@"
