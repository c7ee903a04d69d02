# Two commands do all the set-up on a machine that has only Python: `make demo` and `make test`.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$p -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
JOBS ?= 2
FUZZ_S ?= 60
SOURCES := gateway policies approvals tests

.PHONY: help demo tour test cover check format bench gate fuzz soak clean

help: ## What can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

# What says that a step of the set-up is done holds how many seconds it took: the quickstart's test counts them.
$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "Ostiary needs Python 3.11 or newer; none was found."; exit 1; }
	began=$$SECONDS; $(PYTHON) -m venv $(VENV) && echo $$((SECONDS - began)) >$@

$(VENV)/.runtime: requirements.lock pyproject.toml $(VENV)/.python
	began=$$SECONDS; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && \
	echo $$((SECONDS - began)) >$@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

demo: $(VENV)/.runtime ## The main job on embedded defaults: a guided tour, then the stack stays up
	@$(BIN)/ostiary demo

tour: $(VENV)/.runtime ## The guided tour alone; exits 0 only if every stop behaved
	@$(BIN)/ostiary demo --tour

test: $(VENV)/.dev ## All tests
	$(BIN)/python -m pytest -n $(JOBS) --durations=40

cover: $(VENV)/.dev ## All tests, with coverage of lines and branches (half as long again)
	$(BIN)/python -m pytest -n $(JOBS) --cov --cov-report=term --cov-report=html

check: $(VENV)/.dev ## Formatting, lint, types, import contracts
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Put the sources into form, and the settings into the chart's schema
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/python -m tests.helm.shaping

bench: $(VENV)/.dev ## Every measured figure beside its aim, in ten minutes; also into .bench/table.md
	$(BIN)/python -m tests.bench.run

gate: $(VENV)/.dev ## Whether a call still costs what it did, beside a bare proxy in the same run
	$(BIN)/python -m tests.bench.gate

$(VENV)/.fuzz: requirements-fuzz.lock $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-fuzz.lock
	@touch $@

fuzz: $(VENV)/.fuzz ## Fuzzing, FUZZ_S seconds a target; what is found stays in tests/vectors/fuzz
	$(BIN)/python -m tests.fuzz.campaign --seconds $(FUZZ_S)

soak: $(VENV)/.dev ## The requirement rows at their whole size
	$(BIN)/python -m pytest -m soak --timeout=3600 -p no:randomly

clean: ## Remove what was made here
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis htmlcov .coverage* .import_linter_cache
