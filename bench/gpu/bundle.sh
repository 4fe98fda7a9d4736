#!/usr/bin/env bash
# bundle.sh [PYTHON]: what a GPU machine without network, Boost, Rust or GoogleTest needs, in outputs/gpu/bundle:
# the wheel, the C++ tests, bench/, env.sh. At most 55 MiB. There: `. env.sh`, then stage.sh 1.
# PYTHON (3.12, say): builds for it in build/bundle, with an environment of its own, half an hour; without it
# packs build/release, which `make build` makes for .venv's Python.
set -euo pipefail
cd "$(dirname "$0")/../.."
say() { printf 'bundle: %s\n' "$*"; }
out=$PWD/outputs/gpu/bundle build=$PWD/build/release python=$PWD/.venv/bin/python
tests=(kernels_test nn_test optim_test lora_test sampler_test engine_test)  # model_test has no case of a device

if [ $# -gt 0 ]; then
  build=$PWD/build/bundle python=$PWD/build/bundle-venv/bin/python
  [ -x "$python" ] || "$1" -m venv "${python%/bin/python}"
  say "torch and nvcc for $("$python" -V), about 2.7 GB"
  "$python" -m pip install -r requirements/base.txt -r requirements/cuda.txt -c requirements/constraints.txt
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPYTHON="$python" -DTWINKLE_CUDA=ON
  cmake --build "$build" --target twinkle_product "${tests[@]}" --parallel "${JOBS:-$(nproc)}"
fi

rm -rf "$out"
mkdir -p "$out/tests"
cmake --install "$build" --prefix "$out/stage" --strip > /dev/null
"$python" -m pip wheel --no-deps --no-build-isolation --disable-pip-version-check --wheel-dir "$out" \
  --config-settings=cmake.define.TWINKLE_PREBUILT="$out/stage" .
rm -rf "$out/stage"
for test in "${tests[@]}"; do
  strip -o "$out/tests/$test" "$build/$test"
  gzip "$out/tests/$test"
done
cp /lib/*/libgtest.so.* /lib/*/libgtest_main.so.* "$out/tests" 2> /dev/null || true  # where it is shared
cp -r bench "$out/bench"
rm -rf "$out/bench/results"
find "$out/bench" -name __pycache__ -type d -prune -exec rm -rf {} +

cat > "$out/env.sh" << 'ENV'
# Source it: PYTHON (python3) sees twinkle, the tests in $TWINKLE_TESTS see its torch.
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHON=${PYTHON:-python3} TWINKLE_TESTS=$bundle/tests
if [ ! -d "$bundle/site" ]; then
  "$PYTHON" -m zipfile -e "$bundle"/twinkle*.whl "$bundle/site"
  chmod +x "$bundle/site/twinkle/bin/twinkle"
fi
ln -sf ../site/twinkle/libtwinkle_cuda.so "$bundle/tests"  # programs look beside themselves
for packed in "$bundle"/tests/*.gz; do [ -e "${packed%.gz}" ] || gunzip -k "$packed"; done
torch=$("$PYTHON" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("torch").origin))')
export PYTHONPATH=$bundle/site:$bundle/bench${PYTHONPATH:+:$PYTHONPATH}
export LD_LIBRARY_PATH=$torch/lib:$torch/../nvidia/cu13/lib:$bundle/site/twinkle:$bundle/tests
ENV

# As a stranger has it: nothing of this machine's Boost, every library found, every test program listed.
say "checking $out"
(
  export PYTHON=$python
  unset PYTHONPATH
  . "$out/env.sh"
  for file in "$out"/tests/*_test "$out"/site/twinkle/_core*.so "$out/site/twinkle/bin/twinkle" \
    "$out/tests/libtwinkle_cuda.so"; do
    [ -f "$file" ] || { say "$file is missing" >&2; exit 1; }
    if ldd "$file" | grep -E 'not found|libboost'; then say "$file: see above" >&2; exit 1; fi
  done
  cd /
  "$python" -c "
import sys
sys.meta_path[:] = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]  # .venv's own twinkle
from twinkle.core import core
assert '$out' in core().__file__, core().__file__"
  for test in "${tests[@]}"; do "$out/tests/$test" --gtest_list_tests > /dev/null; done
)
rm -rf "$out/site" "$out"/tests/*_test "$out"/tests/libtwinkle_cuda.so
mib=$(du -sm "$out" | cut -f 1)
say "$mib MiB"
[ "$mib" -lt 55 ] || { say "55 MiB is what goes over" >&2; exit 1; }
