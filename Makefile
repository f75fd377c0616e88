# Each target sets up what it needs in .venv; nothing is installed outside this folder.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard csrc/*) CMakeLists.txt pyproject.toml constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test bench figure4 format lint clean

# The main job on real data: reads per token of 20-billion-parameter tables behind 1 GiB of page cache.
demo: $(VENV)/installed
	$(BIN)/pagegram-io simulate --table 20B --cache 1GiB --plot build/demo.png --force
	@echo "Plot: build/demo.png"

test: $(VENV)/installed-dev lint
	$(BIN)/python -m pytest $(PYTEST_ARGUMENTS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror csrc/*.[ch] $(wildcard tests/c/*.[ch])

bench: $(VENV)/installed-dev
	$(BIN)/python bench/simulator.py
	$(BIN)/python bench/scaling.py
	$(BIN)/python bench/reader.py --part 1
	$(BIN)/python bench/emission.py
	$(BIN)/python bench/nf4.py
	$(BIN)/python bench/training.py

figure4: $(VENV)/installed
	$(BIN)/pagegram-io figure4 -o build/figure4 --force

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i csrc/*.[ch] $(wildcard tests/c/*.[ch])

# Editable, so that Python files are used from here; a change of the C sources installs again.
$(VENV)/installed: $(SOURCES) | $(VENV)/bin/python build
	$(PIP) install -q -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: $(SOURCES) | $(VENV)/bin/python build
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/installed

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "make: python3 -m venv failed; on Debian: apt install python3-venv" >&2; exit 1; }

build:
	mkdir -p build

clean:
	rm -rf $(VENV) build dist
