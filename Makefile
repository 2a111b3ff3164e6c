# `make demo` and `make test` work from a fresh clone: each makes the .venv it needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all lint types tests bench clean

demo: .venv/ready
	$(BIN)/covey run

test: lint types tests

# With the cases that take minutes.
test-all: export COVEY_TEST_ALL := 1
test-all: test

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

tests: .venv/ready
	$(BIN)/python -m pytest -n 2 -q

# Others: benchmarks.whole, benchmarks.growth, benchmarks.gpu, benchmarks.peers (benchmarks/RESULTS.md).
bench: .venv/ready
	$(BIN)/python -m benchmarks.loop

# torch first and by its exact version, so that no newer build is looked for.
.venv/ready: pyproject.toml constraints.txt setup.py covey/native/rows.c covey/native/rows.h
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info covey/native/*.so .mypy_cache .ruff_cache .hypothesis
