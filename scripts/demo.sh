#!/usr/bin/env bash
# demo.sh ARGUMENTS...: runs examples/demo.py from the repository root; arguments are handed on.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python examples/demo.py "$@"
