# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.slurm_plan`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_plan
short_description: Plan a Slurm cluster, or refuse it with every problem of every host
description:
  - Decides once for the whole cluster, on the controller, before anything is changed anywhere. Run it once,
    after M(rdm.provision.slurm_facts) on all hosts.
  - Makes munge's key where it is not there yet.
version_added: 0.3.0
extends_documentation_fragment: rdm.provision.attributes.no_diff
attributes:
  check_mode:
    support: full
    description: In check mode no key is made.
  diff_mode:
    support: none
    description: The files that it plans have a difference where they are written.
options:
  state:
    description: What is planned, the cluster or its end.
    type: str
    choices: [present, absent]
    default: present
  facts:
    description: Name of the variable that the facts were registered in.
    type: str
    default: slurm_facts
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  partitions:
    description: For each partition C(groups), and C(default), C(max_time) and C(options).
    type: dict
    default: {}
  options:
    description: Options of slurm.conf over those that are planned.
    type: dict
    default: {}
  cgroups:
    description: Whether slurmd uses control groups; C(auto) where all nodes can.
    type: str
    choices: [auto, "true", "false"]
    default: auto
  health_check:
    description: Whether a node is checked before and after each job.
    type: bool
    default: true
  rest:
    description: Where slurmrestd listens on the controller, C(HOST:PORT). Empty means that there is none.
    type: str
    default: ""
  accounts:
    description: Accounts, each with its users.
    type: dict
    default: {}
  key:
    description: Path of munge's key on the controller.
    type: path
    required: true
"""

RETURN = r"""
plan:
  description: The plan.
  returned: when it is not refused
  type: dict
  contains:
    controller: {description: The host of slurmctld and slurmdbd., type: str}
    login: {description: The host that jobs are submitted from., type: str}
    nodes: {description: The compute nodes., type: list, elements: str}
    database: {description: The accounting database., type: str}
    hosts:
      description:
        - For each host C(files), C(private_files), C(folders), C(blocks), C(packages), C(daemons),
          C(directories), C(accounts), C(token_key) and C(munge_owner).
      type: dict
    hints: {description: What a firewall has to let through., type: list, elements: str}
rdm_refused: {description: "Who refuses, V(nodes).", returned: when it is refused, type: str}
problems:
  description: Every problem, with C(node), C(value), C(reason) and C(hint).
  returned: when it is refused
  type: list
  elements: dict
"""
