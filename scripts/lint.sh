#!/usr/bin/env bash
# lint.sh [--fix]: C++ by clang-format, Python by ruff, Rust by rustfmt, the include rule, the pages of docs/ that tools/ make.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH:$HOME/.cargo/bin"
status=0
run() { "$@" || { printf 'lint: failed: %.100s\n' "$*" >&2; status=1; }; }

mapfile -t cpp < <(git ls-files --cached --others --exclude-standard '*.h' '*.cpp' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then
  [ ${#cpp[@]} -eq 0 ] || run clang-format -i "${cpp[@]}"
  run ruff check --fix --quiet .
  run ruff format --quiet .
else
  [ ${#cpp[@]} -eq 0 ] || run clang-format --dry-run -Werror "${cpp[@]}"
  run ruff check --quiet .
  run ruff format --check --quiet .
fi
if [ -f rust/text/Cargo.toml ] && command -v cargo-fmt > /dev/null; then
  check=--check
  [ "${1:-}" = --fix ] && check=
  run cargo fmt --manifest-path rust/text/Cargo.toml $check
fi
run python3 tools/layers.py twinkle tools/layers.txt
api=--check
[ "${1:-}" = --fix ] && api=
[ ! -f twinkle/server/routes.def ] || run python3 tools/api_reference.py $api
[ ! -f docs/options.md ] || run python3 tools/options_reference.py $api
[ ! -f python/twinkle/loss/options.json ] || run python3 tools/loss_options.py $api
[ ! -f docs/python.md ] || run python3 tools/python_reference.py $api
[ ! -f docs/without-effect.md ] || run python3 tools/without_effect.py $api
exit $status
