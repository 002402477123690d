# SPDX-License-Identifier: GPL-3.0-or-later
"""Names that several parts share. Roles and the trainer cannot import them: tests compare theirs with these.

This runs everywhere (Python 3.8 or newer).
"""

from __future__ import annotations

LABEL_CLUSTER = "rdm.provision.cluster"
LABEL_ROLE = "rdm.provision.role"
"""Labels of what is ours in a Docker Engine: whose it is, and what it is for."""
LABEL_PLUGIN = "rdm.provision.plugin"
"""Which network plugin a container runs; without it, the upstream one."""

CLUSTER = "rdm"
"""The name of a cluster, and of its containers, where the inventory gives none (`rdm_cluster`)."""

CONFIG_DIR = "/etc/rdm"
USER_CONFIG_DIR = ".rdm/%n"
"""Where a cluster's files are on a node: of root, or in the home of a user who may not become root. %n is the
node's host name, since nodes may share the home."""

JOBS = "/jobs"
"""Where the directory with the jobs is in a container."""

PLAN_FILE = "address_plan.cfg"
STATE_DIR = ".rdm"
"""Beside the inventory: who has which address, and what runs keep."""

RUNTIME_CONTAINER = "container"
RUNTIME_HOST = "host"
RUNTIMES = (RUNTIME_CONTAINER, RUNTIME_HOST)
"""What a job runs in on its nodes."""
ACCELERATORS = ("rocm", "cuda", "cpu")
LAUNCHERS = ("no_ssh", "deepspeed", "torchrun", "mpirun", "slurm")
FINAL_STATES = ("finished", "failed", "stopped")
"""States that a job does not leave by itself. The others: queued, starting, running, restarting, stopping."""
