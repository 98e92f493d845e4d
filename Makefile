# Every verb of this project; `make` alone lists them. Needs GNU make and Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UNFINISHED := $(VENV)/.unfinished
AGAINST ?= HEAD

.DEFAULT_GOAL := help
.PHONY: help setup bench smoke train test proof check peers gpu-check gate site clean

help: ## list these verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1#\2/p' Makefile | while IFS='#' read -r verb text; do \
		printf '%-15s %s\n' "$$verb" "$$text"; done

setup: $(READY) ## make .venv with the versions in constraints.txt, once

# A set-up that was interrupted may leave half a package behind, which pip takes for a whole one.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "setup: draftboard needs Python 3.11 or newer and '$(PYTHON)' is $$($(PYTHON) -V 2>&1);" \
		"name another one: make setup PYTHON=python3.12" >&2; exit 2; }
	@echo "setup: installing draftboard and the versions in constraints.txt into $(VENV) (once; minutes)"
	@test ! -e $(UNFINISHED) || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $(UNFINISHED)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@mv $(UNFINISHED) $@

bench: $(READY) ## measure the quick suite (minutes), print the table, write the page
	@echo "bench: measuring suite 'quick' into results/, then the table and the page"
	@$(BIN)/draftboard run --suite quick; status=$$?; \
	test $$status -eq 0 -o $$status -eq 6 || exit $$status; \
	$(BIN)/draftboard results && $(BIN)/draftboard site && exit $$status

smoke: $(READY) ## run every step of a measurement on 1 prompt per task, keep nothing
	@echo "smoke: measuring suite 'smoke' into a temporary folder"
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
	trap 'echo "smoke: keeps nothing, $$out is removed"' INT && $(BIN)/draftboard run --suite smoke --out "$$out"

train: $(READY) ## make the training data and train every drafter, going on where it stopped (hours)
	@echo "train: the target's replies and states, then every method into drafters/weights/"
	@$(BIN)/draftboard train all

test: $(READY) ## run the tests; ends by naming what was NOT RUN
	@echo "test: running the tests (make proof runs their exhaustive form)"
	@$(BIN)/python -m pytest

proof: $(READY) ## run the exhaustive form of the tests (long)
	@echo "proof: running the exhaustive tests"
	@$(BIN)/python -m pytest -m proof

check: $(READY) ## lint, format check and strict types
	@echo "check: ruff check, ruff format --check, mypy --strict"
	@failed=0; for tool in "ruff check ." "ruff format --check ." mypy; do \
		$(BIN)/$$tool || failed=1; done; exit $$failed

peers: $(READY) ## race the loop against transformers' own, tokens compared
	@echo "peers: timing this engine and transformers on the same prompts; leave the machine idle meanwhile"
	@$(BIN)/python harness/bench/peers.py

gpu-check: $(READY) ## check every part on this machine's GPU (minutes, no network, keeps nothing)
	@echo "gpu-check: golden checkpoints, a random target of 1B, lossless verdicts, NVML field by field"
	@$(BIN)/python harness/bench/gpu_check.py

gate: $(READY) ## run this tree beside a commit: make gate AGAINST=main
	@echo "gate: measuring suite 'gate' in $(AGAINST) and in this tree, round by round"
	@$(BIN)/draftboard gate --against $(AGAINST)

site: $(READY) ## write the page from results/
	@echo "site: writing the page from results/"
	@$(BIN)/draftboard site

clean: ## remove .venv, caches and the built page; results and downloaded targets stay
	@echo "clean: removing $(VENV), caches, build outputs and site/public"
	@rm -rf $(VENV) build dist site/public .mypy_cache .pytest_cache .ruff_cache
	@find harness drafters tests -name __pycache__ -type d -prune -exec rm -rf {} +
