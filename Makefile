# Each target does its own set-up in .venv; nothing is installed outside it but, where it may, Debian's Chromium.
PYTHON ?= python3
# Installed first: a plain "torch" brings gigabytes of CUDA on Linux. Another build: make test TORCH='torch==2.13.0+cpu'
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
SUBSET ?=
WORKERS ?= 2

.PHONY: demo test check detection benchmarks browser clean

demo: $(VENV)/.product
	$(BIN)/gradcanary demo $(if $(HEADLESS),--headless) $(ARGS)

test: $(VENV)/.development browser
	$(BIN)/pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: $(VENV)/.development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

detection: $(VENV)/.product
	$(BIN)/python tests/detection/table.py $(if $(SUBSET),--subset $(SUBSET))

benchmarks: $(VENV)/.development
	for benchmark in tests/benchmarks/*.py; do $(BIN)/python $$benchmark || exit 1; done

browser: $(VENV)/.development
	@tests/browser/ensure_chromium.sh $(BIN)/playwright

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit("gradcanary needs Python 3.11 or newer for its collector: make $(MAKECMDGOALS) PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.product: $(VENV)/.python pyproject.toml
	$(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet --editable '.[all]'
	touch $@

$(VENV)/.development: $(VENV)/.product
	$(BIN)/pip install --quiet --group dev
	touch $@
