# Everything from a fresh clone, with Python 3.11 or newer and make alone. `make` lists the targets.

PYTHON ?= python3
VENV ?= .venv
# What is installed beside Shardwise. Compilers of devices that are not attached are gone without where they cannot be had.
TOOLS := dev,bench,docs
COMPILERS ?= tpu,gpu
# One more requirement for pip, to test against a chosen JAX: make test VENV=.venv-old JAX_CONSTRAINT="jax>=0.10,<0.11"
JAX_CONSTRAINT ?=
# More arguments for pytest: make test ARGS="tests/test_house.py -x"
ARGS ?=
# How many processes run the tests: one more than there are cores, since some tests wait for processes of their own, and one
# where ARGS names tests. Each begins with a part of its own, so that a file's tests mostly share what is compiled and made for
# them; one that is done takes over from the others.
CORES = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)' 2>/dev/null || echo 2)
WORKERS ?= $(if $(findstring tests/,$(ARGS)),0,$(shell expr $(CORES) + 1) --maxprocesses=8)
PARALLEL := --dist worksteal

BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMMA := ,
PIP_INSTALL := $(BIN)/python -m pip install --quiet $(if $(JAX_CONSTRAINT),'$(JAX_CONSTRAINT)')
PYTEST := JAX_PLATFORMS=cpu $(BIN)/python -m pytest

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo browser test test-fast lint format docs cheatsheet recipes package bench bench-overlap accuracy chips bench-gpu \
  bench-peers bench-diff fuzz soak golden clean

help:
	@echo "make setup       a virtual environment in $(VENV) with Shardwise and its tools (the others call it)"
	@echo "make demo        the headline case on simulated devices"
	@echo "make test        every test (installs Chromium first where it is missing and may be)"
	@echo "make test-fast   the tests that need no JAX"
	@echo "make lint        ruff, pyrefly and the floors of the house"
	@echo "make format      ruff's fixes and format"
	@echo "make docs        the guides and the reference as a site in docs/_build/html; every cell of the guides runs"
	@echo "make cheatsheet  the cheat sheet as docs/_build/cheatsheet.pdf, printed by a headless Chromium"
	@echo "make recipes     the recipes of docs/recipes, run with flax, equinox, optax and orbax in $(RECIPES)"
	@echo "make package     the wheel and the sdist in dist, installed and tried in empty environments (PYTHONS=\"python3.11 python3.13\")"
	@echo "make bench       the benchmark, written to docs/benchmarks"
	@echo "make bench-overlap  transfers behind products, compiled for seven TPU slices (needs libtpu; an hour or two)"
	@echo "make bench-steps  training steps with their transfers behind matmuls, for three TPU slices (needs libtpu; an hour or two)"
	@echo "make accuracy    predictions against the clock on this host, and against the compilers; twenty minutes, best left alone"
	@echo "make chips       the figures of TPU compilers, derived from small compiled programs, beside the catalogue's (ARGS=--write)"
	@echo "make bench-gpu   where a GPU is: the catalogue's figures of it beside what it reaches"
	@echo "make bench-peers jax.jit, PyTorch DTensor and NumPy beside it, in an environment of its own (.venv-peers)"
	@echo "make bench-diff  what this tree costs against docs/benchmarks/baseline.json (ARGS=--store stores a new one)"
	@echo "make fuzz        20,000 random equations on the NumPy oracle"
	@echo "make soak        long runs: memory and caches watched, many processes, some of them killed"
	@echo "make golden      compiles the golden corpus (needs libtpu and the CUDA plugin: pip install 'jax[tpu]' jax-cuda13-plugin nvidia-cuda-nvcc)"
	@echo "make clean       removes environments, caches and generated files"

setup: $(READY)
	@echo "$(VENV) is ready: $$($(BIN)/python --version), JAX $$($(BIN)/python -c 'from importlib.metadata import version; print(version("jax"))')"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Shardwise needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) with $$($(BIN)/python --version); the first time takes a minute or two ..."
	@$(PIP_INSTALL) --editable '.[$(TOOLS)$(addprefix $(COMMA),$(COMPILERS))]' 2>$(VENV)/pip.log || { \
	  echo "Not everything can be installed: $$(grep -m 1 ERROR $(VENV)/pip.log)"; \
	  $(PIP_INSTALL) --editable '.[$(TOOLS)]' || exit 1; \
	  for compiler in $(subst $(COMMA), ,$(COMPILERS)); do \
	    $(PIP_INSTALL) --editable ".[$(TOOLS),$$compiler]" 2>$(VENV)/pip-$$compiler.log \
	      || echo "Going on without the $$compiler compiler ($(VENV)/pip-$$compiler.log says why; rm $(READY) tries again)."; \
	  done; }
	@touch $(READY)

# The browser tests drive Chromium, which is no Python package. Where it is missing and may be installed, it is;
# otherwise the tests say so in their last lines. No step waits for ever for a network that is not there.
APT := apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o DPkg::Lock::Timeout=60
CHROMIUM := --no-install-recommends chromium chromium-driver fonts-liberation

browser: export DEBIAN_FRONTEND := noninteractive
browser: $(READY)
	@$(BIN)/python tests/lacking.py browser || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { \
	  echo "Installing Chromium and its driver for the browser tests ..."; \
	  { timeout -k 10 120 $(APT) update && timeout -k 10 300 $(APT) install -y --download-only $(CHROMIUM) \
	    && $(APT) install -y --no-download $(CHROMIUM); } </dev/null >$(VENV)/apt.log 2>&1 \
	    || echo "They could not be installed ($(VENV)/apt.log says why)."; }

demo: $(READY)
	@$(BIN)/python examples/demo.py

test: $(READY) $(if $(and $(findstring tests/,$(ARGS)),$(if $(findstring tests/browser,$(ARGS)),,other)),,browser)
	@$(PYTEST) -n $(WORKERS) $(PARALLEL) $(ARGS)

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

cheatsheet: $(READY)
	@$(BIN)/python docs/print_cheatsheet.py docs/_build/cheatsheet.pdf

# Other projects' libraries have an environment of their own: nothing that Shardwise is tested with comes from them.
RECIPES := .venv-recipes
recipes: $(RECIPES)/.ready
	@JAX_PLATFORMS=cpu $(RECIPES)/bin/python -m pytest -q -p no:cacheprovider -c docs/recipes/pytest.ini docs/recipes $(ARGS)

$(RECIPES)/.ready: pyproject.toml
	@$(RECIPES)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(RECIPES)
	@$(RECIPES)/bin/python -m pip install --quiet --editable '.[recipes]'
	@touch $@

# Built, installed where nothing else is, and tried. Each of PYTHONS is a supported interpreter, the newest last.
PYTHONS ?= $(PYTHON)
package:
	@$(PYTHON) tests/package/check.py dist $(PYTHONS)

bench: $(READY)
	@$(BIN)/python -m benchmarks.latency
	@$(BIN)/python -m benchmarks.run

bench-overlap: $(READY)
	@JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.overlap --fresh

bench-steps: $(READY)
	@JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.steps $(ARGS)

accuracy: $(READY)
	@JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.accuracy $(ARGS)

chips: $(READY)
	@JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.chips $(ARGS)

bench-gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu $(ARGS)

# PyTorch is no dependency of anything else here, and its wheel is large.
PEERS := .venv-peers
bench-peers:
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --editable . torch==2.13.0
	@$(PEERS)/bin/python -m pip install --quiet torch-einshard 2>$(PEERS)/pip.log || echo "Going on without torch-einshard ($(PEERS)/pip.log says why)."
	@$(PEERS)/bin/python -m benchmarks.peers $(ARGS)

bench-diff: $(READY)
	@JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.baseline $(ARGS)

fuzz: $(READY)
	@$(BIN)/python -m benchmarks.fuzz --count 20000

soak: $(READY)
	@$(BIN)/python -m benchmarks.soak
	@JAX_PLATFORMS=cpu $(BIN)/python -m benchmarks.processes
	@CORPUS=whole JAX_PLATFORMS=cpu $(BIN)/python -m pytest -q -p no:cacheprovider tests/doctor/test_corpus.py tests/doctor/test_faults.py
	@FUNCTIONS=200 JAX_PLATFORMS=cpu $(BIN)/python -m pytest -q -p no:cacheprovider tests/overlapping/test_rewriting.py tests/overlapping/test_lookups.py -k 'random or planned_lookups'
	@COMPARES=200 JAX_PLATFORMS=cpu $(BIN)/python -m pytest -q -p no:cacheprovider tests/runtime/test_comparing.py -k loaded

golden: $(READY)
	@$(BIN)/python -m tests.golden.make $(ARGS)

clean:
	rm -rf .venv .venv-floor .venv-newest .venv-bare .venv-peers $(RECIPES) build dist demo docs/_build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
