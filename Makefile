# make demo   set everything up, then rerank a shipped example through the real SGLang
# make test   set everything up, then lint, type-check and test
PYTHON ?= python3
DEVICE ?= auto
BIN := .venv/bin

.PHONY: setup demo check test test-all

setup:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setup: eti-rank needs Python 3.11 or later; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m eti_rank.environment.install --venv .venv --device $(DEVICE) --dev
	@$(BIN)/python -m eti_rank.models.embedded

demo: setup
	@$(BIN)/eti-rank rerank --example

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Triton decides at import whether it interprets, so its kernels are tested in a process of their own.
test: check
	$(BIN)/pytest
	TRITON_INTERPRET=1 $(BIN)/pytest tests/interpreted

test-all: check
	$(BIN)/pytest -m ''
	TRITON_INTERPRET=1 $(BIN)/pytest tests/interpreted
