#!/usr/bin/env bash
# build.sh [--without-tests]: builds build/release and installs it into .venv, seconds after a one-file change.
# Python sources are used where they lie (an editable install); what was compiled lies in
# site-packages/twinkle, beside torch, exactly as in the wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
python=$PWD/.venv/bin/python
build=build/release
target=all
[ "${1:-}" = --without-tests ] && target=twinkle_product

# Cargo first, next to the C++ compilers: only linking waits for the crate. The build's own call of
# cargo, the same one, then waits for this and finds everything done. It goes by times, and what it keeps
# (rust/text/.cargo) may be another clone's of this place: here the crate is compiled once in any case.
[ -d $build/rust ] || touch rust/text/src/lib.rs
(cd rust/text && exec cargo build --release --locked --target-dir "$OLDPWD/$build/rust") &
trap 'kill $! 2> /dev/null || true' EXIT

if [ ! -f $build/build.ninja ] || [ .venv/.setup-base -nt $build/build.ninja ] \
  || [ .venv/.setup-cuda -nt $build/build.ninja ]; then
  cmake --preset release -DPYTHON="$python"
fi
cmake --build $build --target $target --parallel "${JOBS:-$(nproc)}"
trap - EXIT
wait $!
cmake --install $build --prefix $build/stage > /dev/null

# pip runs only when the package's metadata or its list of files changed; else the files are copied.
stamp=.venv/.installed
files=$(find python/twinkle $build/stage -type f ! -path '*/__pycache__/*' | sort)
hash=$({ echo "$PWD $files"; cat pyproject.toml CMakeLists.txt; } | sha256sum)
if [ "$(cat $stamp 2> /dev/null)" != "$hash" ]; then
  "$python" -m pip install --disable-pip-version-check --no-deps --no-build-isolation \
    --config-settings=cmake.define.TWINKLE_PREBUILT="$PWD/$build/stage" --editable .
  echo "$hash" > $stamp
elif [ -d $build/stage/twinkle ]; then
  cp -ru $build/stage/twinkle "$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/"
fi
