#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the state file of a node, with which the next run compares."""

from __future__ import annotations

DOCUMENTATION = r"""
module: state_file
short_description: Keep on the node what a good run has left, so that the next one can compare
description:
  - Records everything that the roles have left on the node, together with the inputs from
    which they worked. M(rdm.provision.node_facts) compares both the next time, in one call.
  - Run it when all roles have ended well. What it writes holds digests and no secrets, and is readable by its
    owner only. With O(lock), the lock of the cluster is released then.
extends_documentation_fragment:
  - rdm.provision.attributes.no_diff
  - rdm.provision.lock
attributes:
  idempotent:
    support: full
    description: A state file is never reported as a change.
options:
  directory:
    description:
      - Where to write it, a directory that the cluster owns; C(~) is the user that the module runs as.
    type: str
    required: true
  worked:
    description:
      - The roles that have worked in this run. Of others the new state file says what the last one did.
    type: list
    elements: str
    required: true
  inputs:
    description: For each role, a digest of what its work on this node depends on.
    type: dict
    required: true
  watch:
    description:
      - What to check besides what carries the cluster's label.
      - C(cluster), C(vfs), C(config_dirs), C(job_directory), C(system), C(images), C(archives),
        C(users), C(paths), C(plugin).
    type: dict
    required: true
  hardware:
    description: Digest of what the node has for containers, as M(rdm.provision.node_facts) returned it.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Write a state file, for the next run
  rdm.provision.state_file:
    directory: /etc/rdm
    worked: "{{ preflight_work.why[inventory_hostname].keys() }}"
    inputs: "{{ preflight_plan.state_files[inventory_hostname].inputs }}"
    watch: "{{ preflight_plan.state_files[inventory_hostname].watch }}"
    hardware: "{{ preflight_facts.node.hardware }}"
"""

RETURN = r"""
kept:
  description: Whether there is a state file now; not where the cluster has no files on the node.
  returned: always
  type: bool
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.state import node_lock, state_file

ARGUMENT_SPEC: Dict[str, Any] = {
    **state_file.ARGUMENTS,
    "lock": {"type": "dict", "options": node_lock.ARGUMENTS},
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Keep the state file, and return the module's result."""
    kept = not module.check_mode and state_file.keep(module.params, DockerAPI())
    if module.params["lock"] and not module.check_mode:
        node_lock.release(module.params["lock"])
    return {"kept": kept}


if __name__ == "__main__":
    main()
