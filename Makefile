# make demo    a first answer from a real model
# make test    all tests; fetches the tools and models they need
# make check   format, lint, types, layers and the fast tests: before every commit

VENV   := .venv
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && \
	$$p -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
	>/dev/null 2>&1 && echo $$p && break; done)
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet

# what is compiled to bytecode once need not be by each of many processes
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check lint fast tools wheel clean

demo: $(VENV)/installed
	$(VENV)/bin/satchel run smollm2 "Why is the sky blue? Answer in two sentences." --temp 0 -n 100

test: $(VENV)/installed-dev tools
	$(VENV)/bin/python -m pytest

# side by side, as pyright is of one thread
check: $(VENV)/installed-dev
	@$(MAKE) --no-print-directory --jobs 2 lint fast

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright

# Neighbours share their fixtures: each process begins with a part of the tests, and takes from others' in the end.
fast: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest -q -m "not slow" -n auto --dist worksteal

# Compilers, an emulator, node and a browser: the tests run our kernels for processors that this one is not,
# and use the chat page as people do.
tools:
	@sh tests/tools.sh

wheel: $(VENV)/installed-dev
	$(PIP) wheel --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) dist .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "satchel needs Python 3.11 to 3.14 with its venv module" \
	"(on Debian and Ubuntu: apt-get install python3-venv), or say make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade pip

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable '.[test,dev]'
	@touch $@ $(VENV)/installed
