#!/usr/bin/env bash
# test.sh [--fast|--soak]: ctest, then pytest, both even when the first fails; fails when either does.
# pytest runs in up to four processes, one more than cores where there are few: many tests wait for what they started.
# With --fast only what takes no minute: no fuzzer, no emulation, no second run with AVX2, no test that starts a
# process, and no model of transformers beside ours (tests/parity). With --soak only the tests that are marked as too long for CI, one after the other.
# The last line but one says how long all of it took; the last is pytest's summary.
# TWINKLE_TEST_DATA names the folder of real data; tests that need it are skipped, with the reason, without it.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0

run_pytest() {  # its output as it comes, but the time before its last line
  local color=() line last=
  [ ! -t 1 ] || color=(--color=yes)
  .venv/bin/python -m pytest "${color[@]}" -rs --durations=15 --durations-min=5 "$@" tests python/tests | {
    IFS= read -r last
    while IFS= read -r line; do
      printf '%s\n' "$last"
      last=$line
    done
    printf 'test: all of it took %d s\n%s\n' "$SECONDS" "$last"
  }
}

if [ "${1:-}" = --soak ]; then
  run_pytest -m soak
  exit
fi
# Programs beside each other: one that spins while it waits for its threads takes another's core.
export OMP_WAIT_POLICY=passive
# Tests of what is not there skip: of what the build should have left, none may.
for built in .venv/bin/twinkle build/release/{example_finetune,engine_soak,twinkle_with_faults}; do
  [ -x $built ] || { echo "test: $built is not built: make build" >&2; status=1; }
done
.venv/bin/python -c 'import twinkle._core' > /dev/null || status=1

cores=$(nproc)
# One more than cores, for the times at which a program waits for one thread of its own.
selected=()
[ "${1:-}" != --fast ] || selected=(--exclude-regex '^fuzz_|^cuda_emulation|_with_avx2$')
ctest --test-dir build/release --output-on-failure --no-tests=error -j $((cores + 1)) "${selected[@]}" || {
  status=1
  echo "test: what failed in ctest, once more:"
  grep -aE -A4 'Failure$|^\[  FAILED  \]|terminate called|SIG[A-Z]+' build/release/Testing/Temporary/LastTest.log | tail -80
}
processes=$((cores < 3 ? cores + 1 : 4))
export OMP_NUM_THREADS=$((cores > processes ? cores / processes : 1))
# File by file, in the order of conftest.py.
beside=(-n "$processes" --dist loadfile --no-loadscope-reorder)
if [ "${1:-}" = --fast ]; then
  run_pytest "${beside[@]}" -m 'not soak and not processes' --ignore tests/parity || status=1
  exit $status
fi
# Compiling under sanitizers takes minutes: it runs while tests wait. Those come late (conftest.py).
builders=()
set -m  # each with a group of its own, to be ended with what it has started
for built in "tsan schedule_test service_test" "fuzz guided"; do
  read -ra words <<< "$built"
  nice -n 19 scripts/preset.sh "${words[@]}" &> /dev/null &
  builders+=("-$!")
done
set +m
trap 'kill -- "${builders[@]}" 2> /dev/null' EXIT
run_pytest "${beside[@]}" || status=1
exit $status
