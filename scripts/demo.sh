#!/usr/bin/env bash
# demo.sh ARGUMENTS...: runs examples/demo.py from the repository root; arguments are handed on. Without
# any, the demo of the service comes behind it.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python examples/demo.py "$@"
[ $# -gt 0 ] || .venv/bin/python examples/service_demo.py
