#!/usr/bin/env bash
# fuzz.sh [READER...]: libFuzzer on the readers of requests and of the journal (tests/fuzz/guided), or on these, each
# for TWINKLE_FUZZ_SECONDS, 600 unless told, as many beside each other as cores. Built by clang++-19, under the address
# and the undefined-behaviour sanitizer, in build/fuzz; what reached new code stays in build/fuzz/cases for the next run.
# A finding's case lies there, too. Status 3: there is no clang++-19, which scripts/setup.sh test installs from Debian.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v clang++-19 > /dev/null; then
  echo "fuzz: clang++-19 was not found: Debian packages clang-19 libclang-rt-19-dev" >&2
  exit 3
fi
scripts/preset.sh fuzz guided
mkdir -p build/fuzz/cases
cd build/fuzz
[ $# -gt 0 ] || mapfile -t < <(./guided)
printf '%s\n' "${@:-${MAPFILE[@]}}" | xargs -P "$(nproc)" -I{} ./guided {} "${TWINKLE_FUZZ_SECONDS:-600}" cases
