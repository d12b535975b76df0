# From a fresh clone each target does all its own set-up; once that is done it costs nothing.

JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
export JOBS
export PYTHONPATH := $(CURDIR)/python$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: build test test-all versions sanitize demo docs docs-test lint format deps setup clean

build: setup
	@scripts/build

test: setup
	@scripts/build all tests
	@scripts/test $(if $(SWEEPS),--some $(SWEEPS))

test-all: setup
	@scripts/build all tests
	@scripts/test --all

versions: setup
	@scripts/build _syncopate syncopate_command
	@$(PYTHON) scripts/versions.py

sanitize: setup
	@scripts/sanitize

demo: setup
	@scripts/build _syncopate
	@$(PYTHON) -m syncopate.command.demo || [ $$? -eq 141 ] # SIGPIPE: make demo | head

docs: setup
	@scripts/build _syncopate
	@scripts/docs

docs-test: setup
	@scripts/build _syncopate
	@scripts/docs --check

lint: setup
	@scripts/build --configure
	@scripts/lint $(LINT)

format: setup
	@scripts/format

deps: setup

setup:
	@scripts/setup

clean:
	rm -rf build build-dev build-asan
	rm -rf python/syncopate/*.so python/syncopate/_syncopate
