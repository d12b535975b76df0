# From a fresh clone each target does all its own set-up; once that is done it costs nothing.

JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
export JOBS
export PYTHONPATH := $(CURDIR)/python$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: build test sanitize demo lint format deps setup clean

build: setup
	@scripts/build

test: build
	@ctest --test-dir build --output-on-failure -j $(JOBS)
	@$(PYTHON) -m pytest -q $$($(PYTHON) -c 'import xdist; print("-n $(JOBS) --dist worksteal")' 2>/dev/null) tests

sanitize: setup
	@scripts/sanitize

demo: build
	@$(PYTHON) -m syncopate.demo

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
	rm -f python/syncopate/*.so
