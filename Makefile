# hvdctl: `make` lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SRC    := toolkit tests scripts examples
# The longest test is in tests/contract, so that folder is first. Tests often wait, so there are more workers than cores.
HERMETIC := tests/contract tests/unit --numprocesses=$$(($$(nproc) + 1)) --dist=worksteal
TIMES  := .ci-times
TIMED   = @$(PYTHON) scripts/ci_times.py run $@ --
PYTEST  = $(BIN)/pytest --junitxml=$(TIMES)/$@.xml
# Arguments for the script of demo, bench-up, bench-scaling, reproduce, fuzz, torture or lock: make bench-up ARGS="--rounds 1 --nodes 2"
ARGS   :=
# Time for fuzz and torture
MINUTES := 5
SEED   :=

.DEFAULT_GOAL := help
# Lanes side by side, as of `make -j2 test`, would share the engine.
.NOTPARALLEL:
.PHONY: help setup engine demo test lanes test-setup lint unit quick coverage browser e2e vm format bench-up bench-scaling reproduce fuzz torture lock clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## install all that is missing and build the PyTorch image; then .venv/bin/hvdctl works
	@$(PYTHON) scripts/setup.py

demo: setup ## the main job, for real: up, a Horovod training on every node, status, down
	@HVDCTL=$(BIN)/hvdctl scripts/demo.sh $(ARGS)

test: ## all set-up, then lint and every test that this machine can run; ends with a table of their times
	@$(PYTHON) scripts/ci_times.py alone -- $(MAKE) --no-print-directory lanes

lanes: test-setup lint unit browser e2e vm

test-setup: ## install all that the tests need and build all images
	$(TIMED) sh -c '$(PYTHON) scripts/setup.py --tests && $(BIN)/hvdctl image build vm'

lint: $(VENV)/.developers ## ruff, mypy, ansible-lint, terraform fmt, shellcheck
	$(TIMED) scripts/lint.sh

unit: $(VENV)/.developers ## the hermetic tests
	$(TIMED) $(PYTEST) $(HERMETIC)

quick: $(VENV)/.developers ## lint and the hermetic tests that touch what changed, within a minute
	@$(PYTHON) scripts/quick.py

coverage: $(VENV)/.developers ## the hermetic tests again, and the lines that they do not reach; slower
	@$(BIN)/pytest $(HERMETIC) --cov=hvdctl --cov-report=term:skip-covered

browser: $(VENV)/.developers ## the report in a real browser; installs Chromium if it is missing
	@scripts/system.sh --tests
	$(TIMED) $(PYTEST) tests/browser

e2e: test-setup ## the tests on a real engine
	$(TIMED) $(PYTEST) tests/e2e -m "not vm" --numprocesses=2 --dist=loadgroup

vm: test-setup ## the tests on virtual machines
	$(TIMED) $(PYTEST) tests/e2e -m vm

bench-up: setup ## measure up, down and run; a table, and bench-up.json
	@$(BIN)/python scripts/bench_up.py $(ARGS)

bench-scaling: setup ## judge bench: errors of predictions, share of the link, overhead; bench-scaling.json
	@$(BIN)/python scripts/bench_scaling.py $(ARGS)

reproduce: setup ## the published experiments on emulated GPUs, into docs/results; about an hour
	@$(BIN)/python scripts/reproduce.py $(ARGS)

torture: setup $(VENV)/.developers ## faults at random moments for MINUTES (5): nothing is lost, left over or made twice
	@$(BIN)/python scripts/torture.py --minutes $(MINUTES) $(ARGS)

fuzz: $(VENV)/.developers ## odd inputs for MINUTES (5): no traceback, nothing made; SEED repeats them
	@$(BIN)/python scripts/fuzz.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

format: $(VENV)/.developers ## format Python and Terraform
	@$(BIN)/ruff format -q $(SRC) && $(BIN)/ruff check -q --fix $(SRC)
	@$$($(BIN)/python -c "from hvdctl import terraform; print(terraform.binary())") fmt -recursive infra

lock: $(VENV)/.developers ## after a change of images/versions.toml: the hashes of all packages, from pip's own index
	@$(BIN)/python scripts/lock.py $(ARGS)

engine: ## start a Docker engine if none answers
	@scripts/engine.sh

$(VENV)/.developers: pyproject.toml
	@$(PYTHON) scripts/setup.py --venv

clean: ## remove the virtual environment and caches; clusters and images stay
	@rm -rf $(VENV) $(TIMES) .mypy_cache .ruff_cache .pytest_cache .ansible bench-up.json bench-scaling.json
