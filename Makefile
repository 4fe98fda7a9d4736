# Every target is a few lines that call scripts/. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup build demo demo-ray test-fast test bench lint format soak clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\): .*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## install what building, testing and the demo need (system packages, .venv); no-op the second time
	@scripts/setup.sh base demo test lint cuda

build: ## build with CMake and install into .venv: .venv/bin/twinkle and `import twinkle`
	@scripts/setup.sh base cuda
	@scripts/build.sh

demo: ## teach a real model a new name by LoRA and show its answers before and after
	@scripts/setup.sh base demo card
	@scripts/build.sh --without-tests
	@scripts/demo.sh

demo-ray: ## GRPO in two workers of a Ray cluster on this machine
	@scripts/setup.sh base demo ray card
	@scripts/build.sh --without-tests
	@.venv/bin/python examples/ray_grpo.py

test-fast: ## five minutes of them: none that starts a process or has a model of transformers beside ours
	@scripts/setup.sh base demo test lint cuda
	@scripts/build.sh
	@scripts/test.sh --fast

test: ## the tests of CI: C++ (ctest) and Python (pytest)
	@scripts/setup.sh base demo test lint cuda
	@scripts/build.sh
	@scripts/test.sh

bench: ## measure speed and memory against the peers into bench/results and docs/benchmarks.md
	@scripts/setup.sh base demo test bench cuda
	@scripts/build.sh
	@scripts/bench.sh

lint: ## check format, style, the include rule
	@scripts/setup.sh lint
	@scripts/lint.sh

format: ## format C++, Python and Rust in place
	@scripts/setup.sh lint
	@scripts/lint.sh --fix

soak: ## the tests that are too long for CI, and the C++ tests under sanitizers
	@scripts/setup.sh base demo test lint cuda
	@scripts/build.sh
	@scripts/test.sh --soak
	@scripts/sanitize.sh
	@scripts/fuzz.sh

clean: ## remove build folders, caches and outputs; .venv stays
	@rm -rf build dist outputs .pytest_cache .ruff_cache
	@find python tests bench examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
