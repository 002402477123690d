# The developer's verbs. `make demo` and `make test` do all their own set-up on a fresh Debian or Ubuntu machine.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
SUDO    := $(if $(filter 0,$(shell id -u)),,sudo)
NODES   ?= 3
LAB     ?= lab

# What the control machine needs besides Python packages; the lab's role installs the engine itself.
APT_RUN  := ca-certificates openssh-client python3-venv
APT_TEST := busybox-static docker-registry docker.io iproute2 mmdebstrap pdsh skopeo zstd

export PATH := $(CURDIR)/$(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg

.DEFAULT_GOAL := help
.PHONY: help demo demo-down test lint unit integration molecule e2e bench docs lock wheel setup setup-dev clean

help: ## list these verbs
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: setup ## a cluster of lab nodes, provisioned over ssh, on this machine (NODES=3)
	@rdm-provision lab up --name $(LAB) --nodes $(NODES)
	@rdm-provision up --inventory inventory/$(LAB)
	@echo
	@echo "To run these commands in this shell: . $(BIN)/activate. To take everything away: make demo-down"

demo-down: setup ## take the demo's cluster away
	@rdm-provision lab down --name $(LAB)

test: setup-dev lint ## everything that CI runs
	pytest tests/unit tests/integration tests/molecule tests/e2e

lint: setup-dev ## style, types and Ansible rules
	ruff check .
	ruff format --check .
	mypy rdm_provision plugins tests benchmarks
	yamllint --strict .
	ansible-lint --profile production --offline

unit: setup-dev ## tests without an engine
	pytest tests/unit

integration: setup-dev ## tests of the modules against a real Docker Engine
	pytest tests/integration

molecule: setup-dev ## every molecule scenario on lab nodes
	pytest tests/molecule

e2e: setup-dev ## the product as its users run it, and its faults, on lab nodes
	pytest tests/e2e

bench: setup-dev ## print the tables of docs/performance.md, measured here and now
	python benchmarks/planner.py
	python benchmarks/provision.py

docs: setup-dev ## write docs/variables.md from the roles' argument_specs
	python docs/generate_variables.py

wheel: setup-dev ## build the wheel that carries the CLI, the API and the collection
	python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

lock: setup-dev ## pin again after a change of pyproject.toml
	pip-compile $(LOCK_FLAGS) --output-file requirements/runtime.txt pyproject.toml
	pip-compile $(LOCK_FLAGS) --extra dev --output-file requirements/dev.txt pyproject.toml
	pip-compile $(LOCK_FLAGS) --output-file requirements/build.txt requirements/build.in

LOCK_FLAGS := --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

setup: $(VENV)/.runtime
setup-dev: $(VENV)/.dev

# $(call packages,LIST): install the Debian packages of LIST that are missing.
define packages
@missing=""; for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
if [ -n "$$missing" ]; then \
  echo "Installing$$missing"; \
  $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $$missing >/dev/null \
  || { echo "These packages are needed and could not be installed:$$missing" >&2; exit 1; }; \
fi
endef

$(VENV)/bin/python:
	$(call packages,$(APT_RUN))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "rdm-provision needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements/runtime.txt pyproject.toml | $(VENV)/bin/python
	@echo "Setting up $(VENV) with pinned dependencies"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(call packages,$(APT_TEST))
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

clean: ## remove what these verbs made in the checkout (a running lab: make demo-down first)
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible
