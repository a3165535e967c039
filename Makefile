# Each target does its own set-up in .venv, benchmarks in .venv-benchmarks; nothing is installed outside them but, where it
# may, Debian's Chromium, gdb and systemd.
PYTHON ?= python3
# Installed first: a plain "torch" brings gigabytes of CUDA on Linux. Another build: make test TORCH='torch==2.13.0+cpu'
TORCH ?= torch==2.13.0
# The oldest that the agent supports: make release.
OLDEST_TORCH ?= torch==2.4.1
VENV := .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported, and keeps that: compiling all of them here took half of the set-up's
# time. Where Python may not keep it (images often say so), each process compiles torch again: 14 s of CPU instead of 4.
INSTALL := pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
SUBSET ?=
WORKERS ?= 4
# Tests of one file stay in one process: they share what it has made once.
DIST ?= loadfile
QUICK := (unit or component or smoke) and not (postgres or slow)
BENCHMARKS ?=

CITUS_URL ?=
# Commands that end and start a node, with {node} for its groupid in pg_dist_node: CITUS_KILL='ssh node{node} ...'
CITUS_KILL ?=
CITUS_START ?=

.PHONY: demo test test-all test-citus test-gpu check mutants detection words public-loops generated benchmarks browser screenshots docs audit release clean

demo: $(VENV)/.product
	$(BIN)/gradcanary demo $(if $(HEADLESS),--headless) $(ARGS)

# What protects a user, in a few minutes: unit and component on SQLite, a collector process, three pages in Chromium.
test: $(VENV)/.browser
	$(BIN)/pytest -n $(WORKERS) --dist $(DIST) -m '$(QUICK)' $(ARGS)

# All of it, "test" included: PostgreSQL, processes that are killed, frameworks, attach, all pages.
test-all: $(VENV)/.browser $(VENV)/.deploy
	$(BIN)/pytest -n $(WORKERS) --dist $(DIST) $(ARGS)

# The server's suites on a cluster of yours, in databases of their own, then ten kills under trainings and a dead node
# (tests/citus). It needs Citus 13 with PostgreSQL 15 on each node. CITUS_AT_WORKER=1 goes through a worker.
test-citus: $(VENV)/.development
ifeq ($(CITUS_URL),)
	@echo "test-citus needs CITUS_URL=postgresql://USER:PASSWORD@COORDINATOR/DATABASE: a superuser of a cluster whose nodes" >&2
	@echo "this machine reaches by the addresses of pg_dist_node, on each max_prepared_transactions above 0 and" >&2
	@echo "max_worker_processes = 64: each database of a test takes one." >&2
	@echo "With CITUS_KILL='COMMAND {node}' and CITUS_START='COMMAND {node}', which end a node (kill -9) and start it, nodes" >&2
	@echo "are killed under trainings, too: {node} is their groupid, 0 the coordinator. Without them only collectors are." >&2
	@echo "With CITUS_AT_WORKER=1 all of it goes through the last worker in place of the coordinator." >&2
	@exit 2
endif
	CITUS_URL='$(CITUS_URL)' $(BIN)/pytest -n $(WORKERS) --dist $(DIST) -m postgres tests/component/server $(ARGS)
	CITUS_URL='$(CITUS_URL)' CITUS_KILL='$(CITUS_KILL)' CITUS_START='$(CITUS_START)' $(BIN)/pytest tests/citus

# No part of "test-all": it fails where there is no GPU.
test-gpu: $(VENV)/.development
	$(BIN)/pytest tests/gpu $(ARGS)

check: $(VENV)/.development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

# Breaks a module in one place at a time, and prints what its tests do not see: docs/results/mutants.md.
mutants: $(VENV)/.development
	OMP_NUM_THREADS=1 $(BIN)/python tests/benchmarks/mutants.py $(MODULE) $(ARGS)

# Both run, also after a miss. ARGS=--write publishes docs/results/detection.md.
detection: $(VENV)/.product
	@status=0; export PYTHONPATH=$(CURDIR)/tests OMP_NUM_THREADS=1; \
	  $(BIN)/python -m detection.suite $(if $(SUBSET),--quick,$(ARGS)) || status=1; \
	  $(BIN)/python -m detection.table $(if $(SUBSET),--subset $(SUBSET)) || status=1; \
	  exit $$status

# All that is said of 24 jobs, beside their truth; status 1: a sentence is false. ARGS='--jobs lr_times_6000' for one.
words: $(VENV)/.product
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m words.report $(ARGS)

# Loops of nanoGPT, Hugging Face's Trainer and diffusers, unchanged and with faults; needs checkouts: NANOGPT=... DIFFUSERS=...
public-loops: $(VENV)/.development
	$(BIN)/$(INSTALL) '$(TORCH)' --group public-loops
	PYTHONPATH=$(CURDIR)/tests OMP_NUM_THREADS=1 $(BIN)/python -m public_loops.report $(ARGS)

# What the documents take from the code: docs/contributing/writing.md.
generated: $(VENV)/.product
	PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m support.documents.generated

# All of them run, also after one that missed a target: hours. What is done is kept: the same command goes on where it ended.
# BENCHMARKS=ingest_cost for one; ARGS=--write publishes BENCHMARKS.md.
benchmarks: $(VENV)-benchmarks/.benchmarks
	$(VENV)-benchmarks/bin/python tests/benchmarks/publish.py $(BENCHMARKS) $(ARGS)

browser: $(VENV)/.browser

# What the documents show of the pages, into docs/images: real trainings on the CPU, in a few minutes.
screenshots: $(VENV)/.browser
	$(BIN)/python tests/support/browser/screenshots.py docs/images --published $(ARGS)

# The documents as a site in build/site: every link must lead somewhere, and no page may ask another host.
docs: $(VENV)-docs/.docs
	$(PYTHON) tests/support/documents/site.py copy
	$(VENV)-docs/bin/mkdocs build --strict --quiet
	$(PYTHON) tests/support/documents/site.py check

# Known vulnerabilities of what a user installs today (torch is the host's). It asks a database in the network, so CI does not.
audit: $(VENV)-audit/.audit
	$(VENV)-audit/bin/pip-audit --strict $(ARGS)

# The archives of the commit, into dist/: built, read, and installed in empty environments: docs/contributing/releasing.md.
# ARGS='--python 3.12' for one version.
release: $(VENV)-release/.release
	PYTHONPATH=$(CURDIR)/tests $(VENV)-release/bin/python -m support.release.check --torch '$(TORCH)' --oldest-torch '$(OLDEST_TORCH)' $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-audit $(VENV)-benchmarks $(VENV)-docs $(VENV)-release build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit("gradcanary needs Python 3.11 or newer for its collector: make $(MAKECMDGOALS) PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.product: $(VENV)/.python pyproject.toml hatch_build.py
	$(BIN)/$(INSTALL) '$(TORCH)'
	$(BIN)/$(INSTALL) --editable '.[all]'
	touch $@

$(VENV)/.development: $(VENV)/.product
	$(BIN)/$(INSTALL) --group dev
	touch $@

$(VENV)/.browser: $(VENV)/.development tests/support/browser/ensure_chromium.sh tests/support/agent/ensure_gdb.sh
	@tests/support/browser/ensure_chromium.sh $(BIN)/playwright
	@tests/support/agent/ensure_gdb.sh
	touch $@

# Unpacked into .venv/deploy, not installed: Prometheus and Alertmanager would start.
$(VENV)/.deploy: $(VENV)/.python tests/support/deploy/ensure_tools.sh
	@tests/support/deploy/ensure_tools.sh $(VENV)/deploy
	touch $@

$(VENV)-audit/.audit: pyproject.toml
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-audit/bin/$(INSTALL) '.[all]' --group audit
	$(VENV)-audit/bin/pip uninstall --quiet --yes gradcanary # no registry has it, and --strict refuses what it cannot look up
	touch $@

$(VENV)-release/.release: pyproject.toml
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-release/bin/$(INSTALL) --group release
	touch $@

$(VENV)-docs/.docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-docs/bin/$(INSTALL) --group docs
	touch $@

$(VENV)-benchmarks/.benchmarks: pyproject.toml tests/support/browser/ensure_chromium.sh
	$(PYTHON) -m venv $(VENV)-benchmarks
	$(VENV)-benchmarks/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-benchmarks/bin/$(INSTALL) '$(TORCH)'
	$(VENV)-benchmarks/bin/$(INSTALL) --editable '.[all]' --group benchmarks
	@tests/support/browser/ensure_chromium.sh $(VENV)-benchmarks/bin/playwright
	touch $@
