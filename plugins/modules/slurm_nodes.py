#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Query slurmctld's nodes and queue, or wait until all nodes can run jobs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_nodes
short_description: Query slurmctld for its nodes and its queue, or wait until all nodes can take jobs
version_added: 0.3.0
extends_documentation_fragment: rdm.provision.attributes.reads
description:
  - Runs on a host that has Slurm's commands.
options:
  wait_for:
    description: Names of nodes that have to be able to take jobs. One that somebody has drained is not.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait.
    type: float
    default: 60
"""

EXAMPLES = r"""
- name: Query slurmctld
  rdm.provision.slurm_nodes:
"""

RETURN = r"""
nodes:
  description: For each node and partition, C(node), C(partition), C(state), C(reason) and C(gres).
  returned: success
  type: list
  elements: dict
jobs:
  description: The queue, C(id), C(state), C(partition) and C(nodes).
  returned: success
  type: list
  elements: dict
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.programs import find_program
from ansible_collections.rdm.provision.plugins.module_utils.slurm import daemons, host_facts

ARGUMENT_SPEC: Dict[str, Any] = {
    "wait_for": {"type": "list", "elements": "str", "default": []},
    "timeout": {"type": "float", "default": 60},
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result."""
    options = module.params
    if not find_program("sinfo"):
        raise NodeError("Slurm is not installed here: rdm-provision slurm up makes a cluster")
    if options["wait_for"]:
        nodes = daemons.wait_for_nodes(options["wait_for"], options["timeout"])
    else:
        nodes = daemons.nodes()
    jobs = host_facts.queue()
    if jobs is None:
        raise NodeError("squeue cannot read the queue: see {0}".format(daemons.LOGS["slurmctld"]))
    return {"nodes": nodes, "jobs": jobs}


if __name__ == "__main__":
    main()
