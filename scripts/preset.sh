#!/usr/bin/env bash
# preset.sh PRESET [TARGET...]: configures build/PRESET, unless that is done, and builds these targets there, when nobody
# else does any more.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
mkdir -p build
exec 9> "build/$1.lock"
flock 9
made=build/$1/build.ninja
if [ ! -f "$made" ] || [ CMakePresets.json -nt "$made" ] || [ .venv/.setup-base -nt "$made" ]; then
  cmake --preset "$1" -DPYTHON="$PWD/.venv/bin/python" > /dev/null
fi
[ $# -gt 1 ] || exit 0
cmake --build "build/$1" --parallel "${JOBS:-$(nproc)}" --target "${@:2}"
