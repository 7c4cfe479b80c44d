# make run       train Swin on four local processes with examples/megatron.ssp
# make test      the tests, on all cores, but for the slow ones; at the end it says how many these are
# make test-all  all of them
# make lint      ruff, mypy, import-linter
# make page      the playground, in build/page: static files that compile plans in a browser
# make release   the sdist and the wheel, in dist/; a smoke set passes with torch alone, and with the lowest versions of all
# make bench     the tables of compile time and step time
# make site      the pages of docs/, of diagnostics and of Python as a web site, in build/site
#
# Each makes .venv when it is missing or older than pyproject.toml. PYTHON=python3.12 chooses the interpreter.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The CPU build where there is one: installed before the project, whose range would pull the newest with its CUDA packages.
TORCH  := torch==2.13.0

# The tests of a file stay in one process, which captures their models once; tests/conftest.py says which files are first.
# They start many interpreters, which find compiled modules, whatever the environment says.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: run test test-all lint page bench format release clean

run: $(VENV)/.run
	$(BIN)/ssdsl run examples/megatron.ssp --model swin

test: $(VENV)/.dev
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.dev
	SSDSL_MUTANTS=$${SSDSL_MUTANTS:-2} $(PYTEST)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

page: $(VENV)/.run
	$(BIN)/python docs/playground/build.py build/page

bench: $(VENV)/.run
	$(BIN)/python -m bench

# In venvs of its own, in build/release.
release:
	$(PYTHON) tests/release/release.py --torch $(TORCH)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: site
site: $(VENV)/.docs
	$(BIN)/python docs/site/build.py build/site

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(VENV)/.python: Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ssdsl needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	@touch $@

$(VENV)/.run: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[models]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[models,dev,docs]'
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[models,docs]'
	@touch $@
