# Two commands on a fresh machine: make demo, make test. Everything lives in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test integrations check fix perf clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("outscope needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e . --group dev
	touch $@

demo: $(VENV)/.ready  ## embed, fit, calibrate and judge a small corpus that ships with the package
	$(BIN)/outscope demo

test: $(VENV)/.ready  ## every test, doctest and README example
	$(BIN)/python -m pytest -n auto

# guardrails-ai and LiteLLM ask for older versions of what the others need.
$(VENV)-integrations/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-integrations
	$(VENV)-integrations/bin/python -m pip install -q --upgrade "pip>=25.1"
	$(VENV)-integrations/bin/python -m pip install -q -e . --group integrations
	touch $@

integrations: $(VENV)-integrations/.ready  ## the tests of libraries that need an environment of their own
	$(VENV)-integrations/bin/python -m pytest tests/test_guardrails.py tests/test_litellm.py

check: $(VENV)/.ready  ## lint, format, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

perf: $(VENV)/.ready  ## every speed, memory and quality bar, side by side with its baseline
	$(BIN)/python -m pip install -q -c constraints.txt --group perf
	cd perf && ../$(BIN)/python run.py

clean:
	rm -rf $(VENV) $(VENV)-integrations .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
