# make demo         the main job on embedded data: a table, figures and a page to open
# make test         style, types and tests: under five minutes on two cores
# make test-all     the same, and the tests that take minutes each
# make test-torch   the optimizers for PyTorch, with the frameworks around it, in an environment of their own
# make test-oldest  the tests with the oldest versions that pyproject.toml allows, in an environment of their own
# make docs         the documentation, in site/
# Each sets up everything it needs on a machine that has only Python 3.11 or newer, git and make.

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

.PHONY: setup demo check test test-all test-torch test-oldest docs clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer is needed, and none was found on PATH"; exit 1; }
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/discover compare digits --optimizers momentum,adam,muon,discover,discover_adam,discover_muon \
	  --out runs/demo --overwrite

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --level error

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

test-all: test
	XLA_FLAGS=--xla_backend_optimization_level=3 $(BIN)/python -m pytest -m slow -q

TORCH := build/torch
# another version: make test-torch TORCH_VERSION=torch==2.13.0
TORCH_VERSION ?= torch
test-torch: $(TORCH)/.ready
	$(TORCH)/bin/basedpyright --level error --project tests/torch --pythonpath $(TORCH)/bin/python
	$(TORCH)/bin/python -m pytest -q tests/torch tests/test_imports.py::test_the_optimizers_for_jax_load_no_torch \
	  'tests/test_docs.py::test_the_code_blocks_of_a_page_run_from_top_to_bottom[pytorch.md]'

$(TORCH)/.ready: pyproject.toml
	@echo "Setting up $(TORCH) (once; some minutes) ..."
	@test -x $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	@$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_VERSION) --editable '.[torch-test]'
	@touch $@

OLDEST := build/oldest
test-oldest:
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check $$($(PYTHON) tests/oldest.py) \
	  pytest pytest-xdist pytest-timeout hypothesis equinox
	$(OLDEST)/bin/python -m pytest -n 2 --dist worksteal -q -W "ignore:Sharding info not provided:UserWarning" \
	  tests/library tests/lab/training tests/lab/models tests/lab/report \
	  tests/lab/data/test_lazy_examples.py tests/lab/data/sources/test_folders.py tests/lab/experiments/run/test_run.py \
	  tests/lab/experiments/run/test_resume.py tests/lab/experiments/sweep

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) runs site build dist .pytest_cache .hypothesis
