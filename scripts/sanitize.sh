#!/usr/bin/env bash
# sanitize.sh [asan|tsan]: builds and runs C++ tests under sanitizers; both without an argument.
# asan: memory errors, leaks and undefined behaviour (build/sanitizers), then of readers that are
# fuzzed. tsan: data races, in what runs without torch, whose own threads are not built for it
# (build/tsan): the scheduling of engine and sampler and the service over a null model, among others.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
export TSAN_OPTIONS="suppressions=$PWD/scripts/tsan.supp ${TSAN_OPTIONS:-}"
status=0

check() {  # check PRESET TEST...
  local preset=$1 test
  shift
  scripts/preset.sh "$preset" "$@"
  for test in "$@"; do
    echo "sanitize: $preset $test"
    "build/$preset/$test" --gtest_brief=1 || status=1
  done
}

fuzz() {  # every reader for TWINKLE_FUZZ_SECONDS, 600 unless told, as many beside each other as cores
  scripts/preset.sh sanitizers fuzz
  cd build/sanitizers  # where the cases of findings are written
  ./fuzz | xargs -P "$(nproc)" -I{} ./fuzz {} "${TWINKLE_FUZZ_SECONDS:-600}" || status=1
  cd ../..
}

case "${1:-both}" in asan | both)
  check sanitizers base_test io_test store_test text_test data_test kernels_test cuda_emulation_test nn_test \
      loss_test metric_test optim_test model_test lora_test sampler_test engine_test service_test
    fuzz
esac
case "${1:-both}" in tsan | both)
  check tsan base_test io_test text_test data_test store_test schedule_test service_test
esac
exit $status
