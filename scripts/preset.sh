#!/usr/bin/env bash
# preset.sh PRESET TARGET...: builds these targets in build/PRESET, when nobody else builds there any more.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
mkdir -p build
exec 9> "build/$1.lock"
flock 9
cmake --preset "$1" -DPYTHON="$PWD/.venv/bin/python" > /dev/null
cmake --build "build/$1" --parallel "${JOBS:-$(nproc)}" --target "${@:2}"
