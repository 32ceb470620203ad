# What people and CI run. Everything lives in .venv and build; `make clean` removes build, never .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ASAN_DIR := build/asan
NATIVE_SOURCES := CMakeLists.txt $(wildcard csrc/*)
COMPILER := $(if $(filter default undefined,$(origin CXX)),c++,$(CXX))
HAVE_COMPILER := $(shell $(COMPILER) --version >/dev/null 2>&1 && echo yes)

# Stamps: a target is remade when what it is made from is newer.
TOOLS := $(VENV)/.terngrad-tools
PACKAGE := $(VENV)/.terngrad-package
ASAN := $(ASAN_DIR)/.built

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install test demo check asan bench clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */\1|/' | \
	    while IFS='|' read -r name text; do printf 'make %-8s %s\n' "$$name" "$$text"; done

install: $(PACKAGE)  ## make .venv with the pinned dependencies and the package, editable

test: install $(if $(HAVE_COMPILER),asan)  ## install, build the ASan core, run every test
	$(BIN)/python -m pytest

demo: install  ## install, then train over a slow link with fp32, fp16 and TernGrad, and compare
	@rm -rf build/demo
	$(BIN)/terngrad compare digits --workers 2 --link 100mbit --methods fp32,fp16,terngrad --fallback --out build/demo/runs --report build/demo/report.html

check: install  ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

asan: $(ASAN)  ## build the native core with AddressSanitizer and UBSan into build/asan

bench: install  ## time the kernels and the hooks
	$(BIN)/python benchmarks/bench_kernels.py
	$(BIN)/python benchmarks/bench_hooks.py

clean:  ## remove what was built; .venv stays, and the next make rebuilds into it
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis $(PACKAGE)
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The build tools come from constraints.txt and not from an isolated build environment, so that they are pinned and a
# rebuild does not download them again.
$(TOOLS): constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt scikit-build-core nanobind cmake ninja
	@touch $@

# Without a compiler the package installs as pure Python. With one, a core that does not build is an error here, since
# otherwise every test would quietly run on the reference.
$(PACKAGE): $(TOOLS) constraints.txt pyproject.toml $(NATIVE_SOURCES)
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev,cli,tensorboard]'
ifdef HAVE_COMPILER
	@ls $(VENV)/lib/*/site-packages/terngrad/kernels/_native*.so >/dev/null 2>&1 || \
	    { echo 'The native core did not build:'; $(BIN)/cmake --build build/cp*; exit 1; }
else
	@echo 'No C++ compiler, so the package runs on the reference kernels. When there is one: make clean install'
endif
	@touch $@

$(ASAN): $(TOOLS) $(NATIVE_SOURCES)
	$(BIN)/cmake -S . -B $(ASAN_DIR) -G Ninja -DTERNGRAD_ASAN=ON \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	$(BIN)/cmake --build $(ASAN_DIR)
	@touch $@
