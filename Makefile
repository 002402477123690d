# The developer's verbs. `make demo` and `make test` do all their own set-up on a fresh Debian or Ubuntu machine.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
SUDO    := $(if $(filter 0,$(shell id -u)),,sudo)
NODES   ?= 3
LAB     ?= lab
# What the demo's training has over trainer/configs/demo.yaml: short enough to watch on two cores.
TRAIN   ?= optimisation.train_iterations=50
TRAINER := trainer/.venv
DATA    := $(VENV)/demo/data
# Without compiled modules on the disk, each of the many processes of the tests would compile ours and torch's again.
unexport PYTHONDONTWRITEBYTECODE

# pip would compile the 15,000 modules of the package ansible's collections, too, which run on nodes and not here. That is
# most of its work. As with pip, a module that this Python cannot compile is left to whoever imports it.
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x ansible_collections $(VENV)/lib || true

# What the control machine needs besides Python packages; the lab's role installs the engine itself.
APT_RUN  := ca-certificates openssh-client python3-venv
# The trainer's tests start its launchers as the images have them, submit to Slurm, and look at reports in a browser.
APT_TRAINER := charliecloud chromium libpmix-dev mariadb-server-core munge openmpi-bin openssh-client openssh-server pdsh \
	slurm-client slurm-wlm-jwt-plugin slurmctld slurmd slurmdbd slurmrestd squashfs-tools
# Virtual machines run in containers that have QEMU; keyring and e2fsprogs are for making their disk.
APT_TEST := busybox-static debian-archive-keyring docker-registry docker.io e2fsprogs fish g++ ibsim-utils \
	infiniband-diags iproute2 mmdebstrap opensm openssh-server pdsh python3-dev skopeo tcsh zstd

export PATH := $(CURDIR)/$(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg

.DEFAULT_GOAL := help
SHELL := bash
.PHONY: help demo demo-down test test-long test-times test-gpu test-stress lint lint-python lint-ansible lint-trainer \
	unit unit-ansible trainer integration molecule e2e machines bench docs lock wheel packages setup setup-dev \
	setup-trainer clean

help: ## list these verbs
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: setup $(DATA)/demo_text_document.idx ## a cluster of lab nodes on this machine, and a GPT trained on it (NODES=3 TRAIN="key.sub=value")
	@rdm-provision lab up --name $(LAB) --nodes $(NODES) --trainer
	@rdm-provision up --inventory inventory/$(LAB)
	@rdm-provision data --inventory inventory/$(LAB) $(DATA)
	@rdm-provision train --inventory inventory/$(LAB) trainer/configs/demo.yaml parallel.pipeline=2 \
	  launcher.nodes=2 $(TRAIN)
	@echo
	@echo "To run these commands in this shell: . $(BIN)/activate. To take everything away: make demo-down"

demo-down: setup ## take the demo's cluster away
	@rdm-provision lab down --name $(LAB)

test: packages ## everything that CI runs
	@# One environment is made beside the other; it is ready when its lint begins. The longest first.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint-python lint-trainer lint-ansible
	@# Each suite that ends makes room for the next, the longest first: several short ones at the end leave neither core idle
	@# for long.
	@# Two virtual machines need both cores: alone, and also where something else was red.
	@status=0; \
	$(MAKE) --no-print-directory --jobs=$(SUITES_AT_ONCE) --keep-going $(addprefix suite-,$(ALL_SUITES)) || status=$$?; \
	$(MAKE) --no-print-directory suite-machines || status=$$?; \
	exit $$status

test-long: setup-dev setup-trainer ## what is too long for `make test`, on a machine that is for nothing else
	pytest -m long tests --junit-xml=$(TIMES)/long.xml
	$(TRAINER)/bin/pytest -m long trainer/tests --junit-xml=$(TIMES)/trainer-long.xml

test-times: ## write docs/development/test-times.md from the suites that ran here last
	$(PYTHON) docs/generate_test_times.py

test-gpu: ## the trainer's tests on an NVIDIA GPU, with the Python that has its torch (PYTHON=python3)
	cd trainer && $(PYTHON) -m pytest -m gpu tests/gpu

# Each busy loop ends with the shell that runs the rounds, however that ends. A round is a process group (set -m), so that
# its suites get a signal as from a terminal, and clean up.
test-stress: setup-dev setup-trainer ## the suites ten times beside a CPU burner (ROUNDS=10 SUITES="e2e unit")
	@rounds=$$(seq $(ROUNDS)) || exit; mkdir -p $(STRESS); rm -f $(STRESS)/*.log; status=0; \
	set -m; suites=; trap 'test -z "$$suites" || { kill -INT -- -$$suites; wait $$suites; }; exit 143' INT TERM; \
	for core in $$(seq $$(nproc)); do while kill -0 $$$$ 2>/dev/null; do :; done & done; \
	for round in $$rounds; do \
	  log=$(STRESS)/round-$$round.log; \
	  $(MAKE) --no-print-directory --jobs=$(SUITES_AT_ONCE) --keep-going $(addprefix suite-,$(SUITES)) \
	    >$$log 2>&1 </dev/null & suites=$$!; \
	  if wait $$suites; \
	  then echo "round $$round of $(ROUNDS): green"; rm $$log; \
	  else status=1; echo "round $$round of $(ROUNDS): failed; its output is in $$log"; \
	    grep -oE '^([^ ]+: )?(FAILED|ERROR) [^ ]+' $$log | sort -u; fi; \
	done; exit $$status

# Three on two cores, since those that drive nodes compute for a third of their time. Four took no less.
SUITES_AT_ONCE := 3
STRESS := .artifacts/stress
ROUNDS ?= 10
# The longest first. The environment may have SUITES, as in a round of test-stress; `make test` runs all.
ALL_SUITES := e2e integration distributed jobs demo images plugins trainer unit molecule
SUITES ?= $(ALL_SUITES)
MACHINES := tests/e2e/test_vm.py
# They share the lab of `make demo`.
DEMO := $(addprefix tests/e2e/,test_demo.py test_train.py test_demo_down.py)
# Parts of tests/integration and trainer/tests/distributed, each of which would still run as one suite when all others have
# ended. These parts wait for engines and ssh, and for agents, launchers and Slurm; the rest of the folders computes.
IMAGE_TESTS := $(wildcard tests/integration/test_image*.py) tests/integration/test_registry_peers.py
JOB_TESTS := $(wildcard $(addprefix trainer/tests/distributed/test_,command.py environments.py *faults.py healthy_job.py \
	job_agents.py prometheus.py rendezvous*.py slurm*.py))
# What each suite leaves for `make test-times`.
TIMES := .artifacts/times

suite-demo: SUITE = pytest $(DEMO)
suite-distributed: SUITE = $(TRAINER)/bin/pytest trainer/tests/distributed $(addprefix --ignore=,$(JOB_TESTS))
suite-e2e: SUITE = pytest tests/e2e $(addprefix --ignore=,$(MACHINES) $(DEMO))
suite-images: SUITE = pytest $(IMAGE_TESTS)
suite-integration: SUITE = pytest tests/integration $(addprefix --ignore=,$(IMAGE_TESTS))
suite-jobs: SUITE = $(TRAINER)/bin/pytest $(JOB_TESTS)
suite-machines: SUITE = pytest $(MACHINES)
suite-molecule: SUITE = pytest tests/molecule
suite-plugins: SUITE = pytest tests/unit/plugins
# The variables are those of trainer/tests/distributed/conftest.py, which is not read here: torch with a thread per core would
# compete with the other suites.
suite-trainer: SUITE = OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu $(TRAINER)/bin/pytest trainer/tests --ignore=trainer/tests/distributed
suite-unit: SUITE = pytest tests/unit --ignore=tests/unit/plugins

# Each line with the name of its suite.
suite-%: setup-dev setup-trainer
	@set -o pipefail; $(SUITE) --junit-xml=$(TIMES)/$*.xml 2>&1 | (trap '' INT; sed -u 's/^/$*: /')

lint: lint-python lint-ansible ## style, types and Ansible rules

lint-python: setup-dev
	ruff check .
	ruff format --check .
	mypy rdm_provision rdm_lab rdm_sriov plugins tests benchmarks
	@# Programs of lab nodes. Each call may have one rdm-lab.
	mypy --scripts-are-modules $(addprefix roles/lab/files/,podman-runtime rdm-lab sriov-plugin)
	mypy --scripts-are-modules roles/lab/files/vm/rdm-lab

lint-ansible: setup-dev
	yamllint --strict .
	ansible-lint --profile production --offline

lint-trainer: setup-trainer ## types of the trainer, which only its own environment knows
	cd trainer && .venv/bin/mypy

unit: setup-dev ## tests without an engine
	pytest tests/unit

unit-ansible: unit-ansible-oldest unit-ansible-newest ## the unit tests that run Ansible, with the oldest and the newest ansible-core

# What runs Ansible or reads its private parts. The newest ansible-core needs a newer Python than the oldest.
ANSIBLE_TESTS := $(addprefix tests/unit/,plugins/action plugins/callback plugins/filter plugins/lookup \
	plugins/plugin_utils/ansible_internals rdm_provision/runner benchmarks/test_scale.py)
unit-ansible-oldest: ANSIBLE_PYTHON = python3.11
unit-ansible-newest: ANSIBLE_PYTHON = python3.12

# In a virtual environment that lasts as long as the tests.
unit-ansible-%: setup-dev
	@set -e; home=$$(mktemp -d); trap 'rm -rf "$$home"' EXIT; \
	uv venv --quiet --python $(ANSIBLE_PYTHON) $$home/venv; \
	uv pip install --quiet --python $$home/venv --require-hashes -r requirements/ansible-$*.txt; \
	PATH=$$home/venv/bin:$$PATH python -m pytest $(ANSIBLE_TESTS)

trainer: lint-trainer ## tests of the trainer, on CPU processes
	$(TRAINER)/bin/pytest trainer/tests

integration: setup-dev setup-trainer ## tests of the modules against a real Docker Engine
	pytest tests/integration

molecule: setup-dev ## every molecule scenario on lab nodes
	pytest tests/molecule

e2e: setup-dev ## the product as its users run it, and its faults, on lab nodes
	pytest tests/e2e --ignore=$(MACHINES)

machines: setup-dev ## the product on virtual machines that have virtual functions
	pytest $(MACHINES)

bench: setup-dev ## print the tables of docs/performance.md, measured here and now
	python benchmarks/planner.py
	python benchmarks/provision.py
	python benchmarks/scale.py
	python benchmarks/sriov_plugin.py

docs: setup-dev ## write roles/*/defaults/main.yml, docs/variables.md, docs/*-configuration.md and docs/megatron-flags.md
	python docs/generate_defaults.py
	python docs/generate_variables.py
	python docs/generate_training_configuration.py
	python docs/generate_megatron_flags.py

wheel: setup-dev ## build the wheel that carries the CLI, the API and the collection
	python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

lock: setup-dev ## pin again after a change of pyproject.toml
	pip-compile $(LOCK_FLAGS) --output-file requirements/runtime.txt pyproject.toml
	pip-compile $(LOCK_FLAGS) --extra dev --output-file requirements/dev.txt pyproject.toml
	pip-compile $(LOCK_FLAGS) --output-file requirements/build.txt requirements/build.in
	$(LOCK_ANSIBLE) --python-version 3.11 --constraint requirements/ansible-oldest.in --output-file requirements/ansible-oldest.txt
	$(LOCK_ANSIBLE) --python-version 3.12 --output-file requirements/ansible-newest.txt

# The newest release that pyproject.toml allows, unless constrained.
LOCK_ANSIBLE := uv pip compile --quiet --upgrade --generate-hashes --no-header --no-annotate --no-emit-index-url \
	pyproject.toml requirements/unit.in

LOCK_FLAGS := --quiet --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

# The demo's text as tokens. It needs neither torch nor the trainer's environment.
TOKENS := PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=trainer:$(VENV)/demo/lib $(BIN)/python -m rdm_trainer

$(VENV)/demo/lib/.ready: trainer/requirements/runtime.txt | $(VENV)/.runtime
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(@D) \
	  $$(grep -E '^(numpy|tokenizers)==' $<)
	@touch $@

$(DATA)/demo_text_document.idx: | $(VENV)/demo/lib/.ready
	@mkdir -p $(VENV)/demo/text $(DATA)
	@$(TOKENS) data download demo-corpus --directory $(VENV)/demo/text
	@$(TOKENS) data download gpt2-vocab --directory $(VENV)/demo/text
	@$(TOKENS) preprocess $(VENV)/demo/text/demo-corpus.jsonl --output-prefix $(DATA)/demo --append-eod \
	  --vocab $(VENV)/demo/text/gpt2-vocab.json --merges $(VENV)/demo/text/gpt2-merges.txt

# All at once: apt-get runs once, and not twice at a time.
packages:
	$(call packages,$(sort $(APT_RUN) $(APT_TEST) $(APT_TRAINER)))

setup: $(VENV)/.runtime
setup-dev: $(VENV)/.dev
setup-trainer: $(TRAINER)/.dev

# $(call packages,LIST): install the Debian packages of LIST that are missing. opensm, which is for a simulated subnet, must
# never become the manager of a real one, so its service is masked first.
define packages
@missing=""; for p in $(1); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
if [ -n "$$missing" ]; then \
  echo "Installing$$missing"; \
  case "$$missing " in *" opensm "*) \
    $(SUDO) mkdir -p /etc/systemd/system && $(SUDO) ln -sfn /dev/null /etc/systemd/system/opensm.service;; esac; \
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
	@$(PIP) --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@# The wheel's copy of the collection, which would be old after the next edit: .collections has the checkout's.
	@rm -rf $(VENV)/lib/python*/site-packages/ansible_collections/rdm
	@$(COMPILE)
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(call packages,$(APT_TEST))
	@$(PIP) --require-hashes -r requirements/dev.txt
	@$(COMPILE)
	@touch $@

$(TRAINER)/.dev: trainer/requirements/runtime.txt trainer/requirements/dev.txt \
		trainer/requirements/finetune.txt trainer/pyproject.toml trainer/images/python.sh
	$(call packages,$(APT_RUN) $(APT_TRAINER))
	@echo "Setting up $(TRAINER) with a CPU build of torch"
	@$(PYTHON) -m venv $(TRAINER)
	@EXTRAS=finetune sh trainer/images/python.sh $(TRAINER)/bin/python trainer/requirements/dev.txt
	@$(TRAINER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable trainer
	@touch $@

clean: ## remove what these verbs made in the checkout (a running lab: make demo-down first)
	rm -rf $(VENV) $(TRAINER) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible
