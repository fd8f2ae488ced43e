# Every target sets up .venv when it is missing or older than the files that say what belongs in it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
EXAMPLES := .venv/.examples
HTA := build/hta/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install demo test lint bench soak clean
.DEFAULT_GOAL := help

help:
	@echo "make install     set up .venv"
	@echo "make demo        audit the example job in two variants on this machine's CPUs"
	@echo "make test        lint, type-check, unit tests, integration tests"
	@echo "make lint        ruff and mypy --strict"
	@echo "make bench NAME=tracer   run tests/bench/NAME.py; figures in build/bench/NAME.json"
	@echo "make soak        repeats too long for every change"
	@echo "make clean       remove .venv, build output and caches; records in runs/ stay"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -qq -c constraints.txt -e '.[dev]'
	@touch $@

$(EXAMPLES): $(READY)
	$(BIN)/pip install -qq -c constraints.txt -e '.[examples]'
	@touch $@

# What traces are compared with; it belongs to no environment of ours.
$(HTA):
	$(PYTHON) -m venv build/hta
	build/hta/bin/pip install -qq HolisticTraceAnalysis==0.5.0 'pandas<3'  # with pandas 3 it fails on traces of many launches
	@touch $@

install: $(READY)

demo: $(READY)
	$(BIN)/magneton-dist launch configs/uneven_inputs.yaml

lint: $(READY)
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary

test: lint
	$(BIN)/pytest --no-header --durations=10 -n auto --maxprocesses 4 --dist loadfile tests/unit
	$(BIN)/pytest --no-header --durations=10 tests/integration

# These compare with transformers, as an example does, and with HolisticTraceAnalysis.
bench: $(READY) $(if $(filter matching,$(NAME)),$(EXAMPLES)) $(if $(filter traces,$(NAME)),$(HTA))
	@test -n "$(NAME)" || { echo "say which: make bench NAME=..., one of:" \
		$(basename $(notdir $(wildcard tests/bench/*.py))) >&2; exit 2; }
	$(BIN)/python tests/bench/$(NAME).py

soak: $(READY)
	$(BIN)/pytest --no-header -m soak tests

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
