#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather a host's facts for Slurm in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_facts
short_description: Read what a host has that matters to Slurm, in one call
description:
  - Returns cores, memory, GPUs, control groups, packages, and whose Slurm is there. Reads files and
    queries the package manager, and Slurm where it is this collection's.
version_added: 0.3.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  devices:
    description: Device files that should exist.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Gather facts
  rdm.provision.slurm_facts:
  register: slurm_facts
"""

RETURN = r"""
slurm:
  description: What the host has.
  returned: always
  type: dict
  contains:
    hostname: {description: "Its own name, without a domain.", type: str, sample: gpu-001}
    systemd: {description: Whether systemd runs., type: bool}
    manager: {description: "C(apt), C(dnf), or empty.", type: str, sample: apt}
    packages: {description: "Versions of the packages by our names, empty where not installed.", type: dict}
    names: {description: Their names in this distribution., type: dict}
    version: {description: "Version of Slurm, empty where it is not installed.", type: str, sample: 22.05.8-4}
    candidate: {description: "The version that would be installed.", type: str}
    cpus: {description: "C(cpus), C(sockets), C(cores) of a socket, C(threads) of a core.", type: dict}
    memory: {description: In MiB., type: int, sample: 1031000}
    gpus: {description: "As M(rdm.provision.node_facts) has them.", type: list, elements: dict}
    missing_devices: {description: "Those of O(devices) that are not there.", type: list, elements: str}
    cgroup: {description: "C(version) and C(controllers).", type: dict}
    health: {description: "C(drivers) of the GPUs, and active C(ports) as mlx5_0/1.", type: dict}
    owner: {description: "The cluster that made the Slurm that is there; empty for none.", type: str}
    foreign: {description: "What is there of a Slurm that is not ours; empty for nothing.", type: str}
    running: {description: "What runs of Slurm, munged, and jobs' slurmstepd.", type: list, elements: str}
    munge_key: {description: "Digest of munge's key; empty for none.", type: str}
    conf: {description: "The text of slurm.conf, where it is ours.", type: str}
    applied: {description: "What the daemons were started with and have read.", type: dict}
    jobs:
      description: "On the controller the queue: C(id), C(state), C(partition), C(nodes); null if unreadable."
      type: list
      elements: dict
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.slurm.host_facts import gather

ARGUMENT_SPEC: Dict[str, Any] = {"devices": {"type": "list", "elements": "str", "default": []}}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result."""
    return {"slurm": gather(module.params["devices"])}


if __name__ == "__main__":
    main()
