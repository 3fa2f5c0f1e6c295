# Everything from a fresh clone, with Python 3.11 or newer and make alone. `make` lists the targets.

PYTHON ?= python3
VENV ?= .venv
# One more requirement for pip, to test against a chosen JAX: make test VENV=.venv-old JAX_CONSTRAINT="jax>=0.10,<0.11"
JAX_CONSTRAINT ?=
# More arguments for pytest: make test ARGS="tests/test_house.py -x"
ARGS ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := JAX_PLATFORMS=cpu $(BIN)/python -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint format docs bench bench-overlap fuzz soak golden clean

help:
	@echo "make setup       a virtual environment in $(VENV) with Shardwise and its tools (the others call it)"
	@echo "make demo        the headline case on simulated devices"
	@echo "make test        every test"
	@echo "make test-fast   the tests that need no JAX"
	@echo "make lint        ruff, pyrefly and the floors of the house"
	@echo "make format      ruff's fixes and format"
	@echo "make docs        the guides and the reference as a site in docs/_build/html; every cell of the guides runs"
	@echo "make bench       the benchmark, written to docs/benchmarks"
	@echo "make bench-overlap  transfers behind products, compiled for seven TPU slices (needs libtpu; an hour or two)"
	@echo "make fuzz        20,000 random equations on the NumPy oracle"
	@echo "make soak        a long run that watches memory and caches"
	@echo "make golden      compiles the golden corpus (needs libtpu and the CUDA plugin: pip install 'jax[tpu]' jax-cuda13-plugin nvidia-cuda-nvcc)"
	@echo "make clean       removes environments, caches and generated files"

setup: $(READY)
	@echo "$(VENV) is ready: $$($(BIN)/python --version), JAX $$($(BIN)/python -c 'from importlib.metadata import version; print(version("jax"))')"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Shardwise needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) with $$($(BIN)/python --version); the first time takes a minute or two ..."
	@$(BIN)/python -m pip install --quiet --editable '.[dev,bench,docs,tpu,gpu]' $(if $(JAX_CONSTRAINT),'$(JAX_CONSTRAINT)')
	@touch $(READY)

demo: $(READY)
	@$(BIN)/python examples/demo.py

test: $(READY)
	@$(PYTEST) $(ARGS)

test-fast: $(READY)
	@$(PYTEST) -m "not jax" $(ARGS)

lint: $(READY)
	@echo "ruff check" && $(BIN)/ruff check
	@echo "ruff format --check" && $(BIN)/ruff format --check
	@echo "pyrefly" && $(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --output-format min-text
	@echo "lint-imports" && $(BIN)/lint-imports --no-logo

format: $(READY)
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

docs: $(READY)
	@JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(READY)
	@$(BIN)/python -m benchmarks.latency
	@$(BIN)/python -m benchmarks.run

bench-overlap: $(READY)
	@JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.overlap --fresh

fuzz: $(READY)
	@$(BIN)/python -m benchmarks.fuzz --count 20000

soak: $(READY)
	@$(BIN)/python -m benchmarks.soak

golden: $(READY)
	@$(BIN)/python -m tests.golden.make $(ARGS)

clean:
	rm -rf .venv .venv-floor .venv-newest build dist demo docs/_build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
