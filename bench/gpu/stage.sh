#!/usr/bin/env bash
# stage.sh N [--rehearse]: stage N (1 to 5) of the first hour on a GPU, below 9 minutes each; . env.sh first (bundle.sh).
# Prints a table last and leaves at most 8 files in $OUT (outputs/gpu/stage-N). --rehearse: tiny shapes
# on the CPU, whose figures mean nothing.
set -uo pipefail
stage=${1:?which stage: 1 to 5} rehearse=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-outputs/gpu/stage-$stage}
mkdir -p "$out"
python=${PYTHON:-python3}
tests=${TWINKLE_TESTS:-$here/../../build/release}
status=0

left=$((SECONDS + 525))  # when the last command must have ended
run() {  # run SECONDS LOG COMMAND...: its output goes to the log; one that fails does not end the stage
  local most=$1 log=$out/$2
  shift 2
  [ $((left - SECONDS)) -gt "$most" ] || most=$((left - SECONDS))
  if [ "$most" -le 0 ]; then echo "no time left for: $*" | tee -a "$log"; status=1; return; fi
  echo "== $*" >> "$log"
  timeout "$most" "$@" >> "$log" 2>&1 || { echo "failed ($?): ${*:0:4}, see $log"; status=1; }
}

run_tests() {  # run_tests SECONDS: what knows a device, all programs at once; 11 s on an H100
  local test filter='*Cuda*:*OnDevice*:*Device*:*TrainGraphs*' jobs=()
  [ -z "$rehearse" ] || filter=-*
  for test in kernels nn optim lora sampler engine; do
    timeout "$1" "$tests/${test}_test" --gtest_brief=1 --gtest_filter="$filter" > "$out/$test.tmp" 2>&1 &
    jobs+=($!)
  done
  for test in kernels nn optim lora sampler engine; do
    wait "${jobs[0]}" || { echo "failed ($?): ${test}_test, see $out/tests.log"; status=1; }
    jobs=("${jobs[@]:1}")
    cat "$out/$test.tmp" >> "$out/tests.log" && rm "$out/$test.tmp"
  done
}

rm -f "$out"/*.log
case $stage in
  1)
    run 30 machine.log "$python" -c 'import torch; print(torch.__config__.show(), torch.cuda.is_available())'
    [ -n "$rehearse" ] || run 30 machine.log nvidia-smi -q
    run 200 probe.log "$python" "$here/probe.py" --out "$out/probe.json" $rehearse
    # A workspace of its own is read once, when CUDA starts.
    CUBLAS_WORKSPACE_CONFIG=:16:8 CUBLASLT_WORKSPACE_SIZE=1 \
      run 60 probe.log "$python" "$here/probe.py" --only products --out "$out/workspace.json" $rehearse
    run_tests 60
    ;;
  2 | 3)
    if [ "$stage" = 2 ] && [ -z "$rehearse" ]; then
      for tool in memcheck racecheck; do
        run 60 sanitizer.log compute-sanitizer --tool $tool "$tests/kernels_test" --gtest_filter='*Device*:Cuda*'
      done
    fi
    run 150 profile.log "$python" "$here/profile_engine.py" --out "$out/profile.json" $rehearse
    run 150 profile.log "$python" "$here/profile_engine.py" --no-deterministic --out "$out/fast.json" $rehearse
    ;;
  4 | 5)
    asked=(--only G5,G3,G8 --shapes head,135M,0.6B)
    [ "$stage" = 4 ] || asked=(--only G1,G7,G10,G11)
    device=(--device cuda)
    [ -z "$rehearse" ] || device=(--rehearse)
    XDG_CACHE_HOME=${XDG_CACHE_HOME:-/dev/shm} \
      run 500 bench.log "$python" "$here/../run.py" "${device[@]}" "${asked[@]}" --out "$out"
    ;;
  *) echo "stage.sh: stage is '$stage', it must be 1 to 5" >&2; exit 2 ;;
esac
grep -hE '^\||FAILED|^graphs' "$out"/*.log | tail -n 100
exit $status
