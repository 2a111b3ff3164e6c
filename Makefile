# `make demo` and `make test` work from a fresh clone: each makes the .venv it needs, the demo without the tools of the tests.
PYTHON ?= python3
BIN := .venv/bin

# Commands that the tests start import compiled files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-browser test-deployed lint types tests coverage bench docs wheel sbom licences lock locked clean

demo: .venv/ready
	$(BIN)/covey run

# mypy has one process, pytest two, so that both take less time together than one after the other.
test: lint
	$(MAKE) --no-print-directory --jobs=2 types tests

# With the cases that take minutes, in parts of at most 25 minutes on two cores (tests/parts.toml):
# `make test-all PART=laws`. Without PART the linter, the types and all parts, whichever fails.
test-all: export COVEY_TEST_ALL := 1
test-all: $(if $(PART),.venv/dev,lint types)
	@failed=; for part in $(or $(PART),$$($(BIN)/python -m tests.parts)); do echo "part $$part"; \
		files=$$($(BIN)/python -m tests.parts $$part) && $(BIN)/python -m pytest -n 2 -q $$files || failed="$$failed $$part"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# The report's page in headless Chromium (apt-get install chromium).
test-browser: export COVEY_TEST_BROWSER := 1
test-browser: .venv/dev
	$(PIP) -e '.[browser]'
	$(BIN)/python -m pytest -q tests/browser

# A deployed tree at length: every case over sockets, real processes in network namespaces (one tree
# at a time, as root), a million hostile streams, 100,000 hostile orders.
ON_A_NETWORK = tests/deployed/test_namespaces.py tests/deployed/test_partition.py
test-deployed: export COVEY_TEST_ALL := 1
test-deployed: .venv/dev
	$(BIN)/python -m pytest -n 2 -q tests/deployed $(ON_A_NETWORK:%=--ignore=%) $(wildcard tests/laws/test_deployed.py) tests/laws/test_sockets.py
	$(BIN)/python -m pytest -q -rs $(ON_A_NETWORK)
	$(BIN)/python -m fuzz.stream --random 1000000 1
	$(BIN)/python -m fuzz.machine 20000 1
	$(BIN)/python -m fuzz.parent 100000 1

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

tests: .venv/dev
	$(BIN)/python -m pytest -n 2 -q

# Minutes longer than the tests: which lines of the kernel, the engine, the links and the algorithms
# no test runs. Not part of `make test`.
MEASURED = covey/kernel/*,covey/engine/*,covey/links/*,covey/algorithms/*
coverage: .venv/dev
	mkdir -p build/coverage
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n 2 -q
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --include='$(MEASURED)' --show-missing --skip-covered --fail-under=98

# Others: benchmarks.whole, benchmarks.growth, benchmarks.gpu, benchmarks.rivals, benchmarks.peers (benchmarks/RESULTS.md).
bench: .venv/dev
	$(BIN)/python -m benchmarks.loop

# The site, in build/site. A warning, such as a broken link or anchor, is an error.
docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/docs
	$(BIN)/python -m mkdocs build --strict

# The wheel and the source distribution, in dist/. The tag of the wheel is that of this machine, for
# instance linux_x86_64; the last line says which manylinux tag it would meet.
wheel: build/tools/ready
	rm -rf dist
	build/tools/bin/python -m build --outdir dist
	build/tools/bin/python -m auditwheel show dist/*.whl

# What .venv has installed, in CycloneDX: build/sbom.json.
sbom: .venv/ready build/tools/ready
	build/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file build/sbom.json $(BIN)/python

# The licences of what `pip install` brings; fails on the GPL family.
licences: .venv/ready
	$(BIN)/python -m tools.licences

# torch first and by its exact version, so that no newer build is looked for. Python compiles what it imports by itself.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.venv/ready: pyproject.toml constraints.txt setup.py covey/native/rows.c covey/native/rows.h covey/native/normal.h
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) -e .
	touch $@

.venv/dev: .venv/ready
	$(PIP) -e '.[dev,deploy]'
	touch $@

# requirements.lock anew, after a change of constraints.txt.
lock: .venv/dev
	$(BIN)/python -m tools.lock

# .venv as `make test` has it, with a hash for every file but those of torch and what its build adds.
locked:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile \
		--require-hashes --no-deps -r requirements.lock
	$(PIP) torch==2.13.0
	$(PIP) --no-deps --no-build-isolation -e .
	touch .venv/ready .venv/dev

.venv/docs: .venv/ready
	$(PIP) -e '.[docs]'
	touch $@

# The tools of a release have an environment of their own, so that they are not in the SBOM.
build/tools/ready: constraints.txt
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		auditwheel build cyclonedx-bom
	touch $@

clean:
	rm -rf .venv build *.egg-info covey/native/*.so .mypy_cache .ruff_cache .hypothesis
