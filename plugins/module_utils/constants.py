# SPDX-License-Identifier: GPL-3.0-or-later
"""Names that several parts share. Roles and the trainer cannot import them: tests compare their copies.

This runs everywhere (Python 3.8 or newer).
"""

from __future__ import annotations

LABEL_CLUSTER = "rdm.provision.cluster"
LABEL_ROLE = "rdm.provision.role"
"""Docker labels of what we create: the cluster that owns it, and its purpose."""
LABEL_PLUGIN = "rdm.provision.plugin"
"""The network plugin that a container runs; a container without this label runs the upstream plugin."""

CLUSTER = "rdm"
"""The default of `rdm_cluster`: the name of a cluster and of its containers."""

CONFIG_DIR = "/etc/rdm"
USER_CONFIG_DIR = ".rdm/%n"
"""A cluster's files on a node: root's, or in the home of a user who may not become root. %n is the node's
host name, since nodes may share the home."""

JOBS = "/jobs"
"""The jobs' directory in a container."""

PLAN_FILE = "address_plan.cfg"
STATE_DIR = ".rdm"
"""Next to the inventory: the address plan, and the state of runs."""

RUNTIME_CONTAINER = "container"
RUNTIME_HOST = "host"
RUNTIMES = (RUNTIME_CONTAINER, RUNTIME_HOST)
"""A job's execution environments."""
ACCELERATORS = ("rocm", "cuda", "cpu")
LAUNCHERS = ("no_ssh", "deepspeed", "torchrun", "mpirun", "slurm")
FINAL_STATES = ("finished", "failed", "stopped")
"""States that a job does not leave by itself. The others: queued, starting, running, restarting, stopping."""
