# Every target works from a bare checkout: it makes .venv, installs what constraints.txt pins, and goes on.
SUITS := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
    if $$name $(SUITS) 2>/dev/null; then command -v $$name; break; fi; done)
override PYTHON := $(or $(PYTHON),python3)
VENV := .venv
BIN := $(VENV)/bin
# faiss-gpu brings CUDA libraries along, so it is installed only beside an NVIDIA driver.
FAISS := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
OTHER := $(if $(filter gpu,$(FAISS)),cpu,gpu)
STAMP := $(VENV)/installed-$(FAISS)

.PHONY: demo test check install clean
.DELETE_ON_ERROR:

demo: install
	$(BIN)/salience demo

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

install: $(STAMP)

# Prerequisites are the two files that decide what is installed; sources are editable.
$(STAMP): pyproject.toml constraints.txt
	@"$(PYTHON)" $(SUITS) || \
	    { echo 'Salience needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)' >&2; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@if test -e $(VENV)/installed-$(OTHER); then $(BIN)/python -m pip uninstall --yes faiss-$(OTHER); fi
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(FAISS),dev]'
	@rm -f $(VENV)/installed-*
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
