# Every target works as the first command on a machine that has Python 3.11+ and make: what it needs is
# installed into .venv from requirements.lock, once, and again only when that file or pyproject.toml changes.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help quickstart up down cluster-up cluster-down operator-run test check fmt generate image bench lock clean FORCE

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# A virtual environment that was copied from another folder, or whose Python is gone, is no environment: the
# stamp holds the folder that it was made for.
ifneq ($(shell $(BIN)/python -c 'print("ok")' 2>/dev/null):$(shell cat $(READY) 2>/dev/null),ok:$(CURDIR))
$(READY): FORCE
endif

help: ## Show this list
	@echo "DocGrid: make TARGET"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 16 | sed 's/^/  /'

quickstart: $(READY) ## Index sample documents on a local stack, kill a worker on the way, search, stop
	@$(BIN)/docgrid quickstart

up: $(READY) ## Start the local stack and leave it running
	@$(BIN)/docgrid up

down: $(READY) ## Stop the local stack; its data is kept
	@$(BIN)/docgrid down

cluster-up: $(READY) ## Start a Kubernetes control plane and a stand-in node; NODES=2 starts real ones, with images
	@PYTHONPATH=tests $(BIN)/python -m support.cluster up $(NODES)

cluster-down: $(READY) ## Stop that control plane and all that runs on it; nothing of it is kept
	@PYTHONPATH=tests $(BIN)/python -m support.cluster down

operator-run: $(READY) ## Run the operator in the current kubeconfig's namespace, with the local stack, until Ctrl-C
	@$(BIN)/python tools/operator_run.py

test: $(READY) ## Run every test this machine can run; LAYERS="unit core" picks, ARGS="-k lease" goes to pytest
	@$(BIN)/coverage run -m pytest $(addprefix tests/,$(LAYERS)) $(ARGS)

check: $(READY) ## Lint, format, types, import contracts, lock file, generated files
	@$(BIN)/python tools/run_checks.py

fmt: $(READY) ## Put the code in order: ruff's safe fixes, then its formatter
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

generate: $(READY) ## Write what is made from the code: page of settings, custom resources, chart, manifests
	@$(BIN)/python tools/settings_page.py
	@$(BIN)/python tools/generate_crds.py
	@PYTHONPATH=tests $(BIN)/python tools/generate_chart.py

image: $(READY) ## Build the container image, and the one with the servers that tests in a cluster need
	@PYTHONPATH=tests $(BIN)/python -m support.image

bench: $(READY) ## Measure and compare with the targets; ONLY="Q1 V1" picks
	@PYTHONPATH=tests $(BIN)/python -m bench $(ONLY)

lock: $(READY) ## Write requirements.lock from pyproject.toml; ARGS=--upgrade takes the newest versions
	@$(BIN)/python tools/lock_dependencies.py $(ARGS)

clean: ## Remove the virtual environment, caches and builds
	rm -rf $(VENV) build dist .cache .coverage .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml tools/setup_venv.sh
	@tools/setup_venv.sh $(VENV) requirements.lock
