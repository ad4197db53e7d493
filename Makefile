# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# What the studies, the checkpoint tools and the explorer need works after `make demo`.
EXTRAS := --extra corpus --extra checkpoints --extra app

.PHONY: demo test lint bench docs lock figures chromium clean

demo: .venv/.demo  ## gradient flow with every claim, then the paper's own optimiser; names the reports
	$(BIN)/attnflow run focus-dilution --overwrite
	$(BIN)/attnflow run focus-dilution --config examples/appendix_e.toml --no-claims --overwrite

test: .venv/.dev chromium lint  ## everything that CI checks
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q  # two workers already fill two cores

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

bench: .venv/.dev  ## ours and the peers side by side; torch is only needed here
	$(PIP) -r requirements/bench.in
	$(BIN)/python -m benchmarks --markdown benchmarks/RESULTS.md

figures: .venv/.dev  ## the pictures of README and docs
	$(BIN)/python docs/make_figures.py

docs: .venv/.dev  ## docs/_build/html: warnings are errors, the tutorials are run, no network
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

lock: .venv/.dev  ## pin names, versions and hashes again (needs uv)
	uv pip compile --universal --generate-hashes --no-annotate --no-header --python-version 3.11 \
	  --quiet pyproject.toml requirements/build.in $(EXTRAS) -o requirements/demo.txt
	uv pip compile --universal --generate-hashes --no-annotate --no-header --python-version 3.11 \
	  --quiet pyproject.toml requirements/build.in --extra dev -c requirements/demo.txt \
	  -o requirements/dev.txt

# The project itself is installed without build isolation: its build tools are in the lock too.
.venv/.demo: requirements/demo.txt pyproject.toml | .venv/bin/python
	$(PIP) --require-hashes -r requirements/demo.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.dev: requirements/dev.txt pyproject.toml | .venv/bin/python
	$(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("attnflow needs Python 3.11 or newer; try make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

# The only thing outside .venv: a browser for the page tests, from the system's own packages.
chromium:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	    || command -v google-chrome >/dev/null; then :; \
	elif [ "$$CI" = true ] && command -v apt-get >/dev/null; then \
	  echo "installing Chromium with apt-get (system-wide) for the browser tests"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	else echo "no Chromium: the browser tests will be skipped"; fi

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
