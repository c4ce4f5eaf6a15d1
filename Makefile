# hvdctl: `make` lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SRC    := toolkit tests scripts examples
# Arguments for the script of demo, bench-up, bench-scaling or reproduce, e.g. make bench-up ARGS="--rounds 1 --nodes 2"
ARGS   :=
HERMETIC := tests/unit tests/contract --numprocesses=auto --dist=loadfile

.DEFAULT_GOAL := help
.PHONY: help setup system engine images demo test lint unit coverage browser e2e vm format bench-up bench-scaling reproduce clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: system engine $(VENV)/.ready ## install all that is missing and build the PyTorch image; then .venv/bin/hvdctl works
	@$(BIN)/hvdctl image build pytorch

demo: setup ## the main job, for real: up, a Horovod training on every node, status, down
	@HVDCTL=$(BIN)/hvdctl scripts/demo.sh $(ARGS)

test: setup images lint unit browser e2e vm ## all set-up, then lint and every test that this machine can run

lint: $(VENV)/.ready ## ruff, mypy, ansible-lint, terraform fmt, shellcheck
	@scripts/lint.sh

unit: $(VENV)/.ready ## the hermetic tests
	@$(BIN)/pytest $(HERMETIC)

coverage: $(VENV)/.ready ## the hermetic tests again, and the lines that they do not reach; slower
	@$(BIN)/pytest $(HERMETIC) --cov=hvdctl --cov-report=term:skip-covered

browser: $(VENV)/.ready ## the report in a real browser; installs Chromium where it is missing
	@scripts/system.sh --tests
	@$(BIN)/pytest tests/browser

e2e: $(VENV)/.ready $(VENV)/gpulab/.ready $(VENV)/registry/.ready images ## the tests on a real engine; installs Chromium where it is missing
	@scripts/system.sh --tests
	@$(BIN)/pytest tests/e2e -m "not vm" --numprocesses=2 --dist=loadfile --durations=8

vm: $(VENV)/.ready images ## the tests on virtual machines; installs QEMU where it is missing
	@scripts/system.sh --tests
	@$(BIN)/hvdctl image build vm
	@$(BIN)/pytest tests/e2e -m vm --durations=8

bench-up: setup ## measure up, down and run; a table, and bench-up.json
	@$(BIN)/python scripts/bench_up.py $(ARGS)

bench-scaling: setup ## judge bench: errors of predictions, share of the link, overhead; bench-scaling.json
	@$(BIN)/python scripts/bench_scaling.py $(ARGS)

reproduce: setup ## the published experiments on emulated GPUs, into docs/results; about an hour
	@$(BIN)/python scripts/reproduce.py $(ARGS)

format: $(VENV)/.ready ## format Python and Terraform
	@$(BIN)/ruff format -q $(SRC) && $(BIN)/ruff check -q --fix $(SRC)
	@terraform fmt -recursive infra

system:
	@scripts/system.sh

engine: ## start a Docker engine where none answers
	@scripts/engine.sh

images: $(VENV)/.ready engine
	@$(BIN)/hvdctl image build all

$(VENV)/.ready: pyproject.toml
	@echo "venv: installing hvdctl and its tools into $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/it"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[dev]' 2> $(VENV)/pip.log || { tail -n 20 $(VENV)/pip.log; exit 1; }
	@touch $@

# imec's client pins an old cryptography, which would take the place of ours: a virtual environment of its own.
$(VENV)/gpulab/.ready: tests/gpulab-client.txt | $(VENV)/.ready
	@echo "venv: installing imec's GPULab client into $(VENV)/gpulab"
	@test -x $(VENV)/gpulab/bin/python || $(PYTHON) -m venv $(VENV)/gpulab
	@$(VENV)/gpulab/bin/python -m pip install --quiet --requirement $< 2> $(VENV)/pip.log || { tail -n 20 $(VENV)/pip.log; exit 1; }
	@touch $@

# Taken out of its package and not installed: as a service it would listen on every address.
$(VENV)/registry/.ready: | $(VENV)/.ready
	@echo "registry: unpacking Debian's docker-registry into $(VENV)/registry"
	@scripts/registry.sh $(VENV)/registry
	@touch $@

clean: ## remove the virtual environment and caches; clusters and images stay
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .ansible bench-up.json bench-scaling.json
