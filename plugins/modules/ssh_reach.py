#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a host can log in to the others of its cluster over ssh."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_reach
short_description: Log in from a host to the others of its cluster
description:
  - Logs in as launchers do, to each address, without a question, and fails with ssh's words where it cannot.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  nodes:
    description: One line C(node MY_IP) for each host to log in to.
    type: str
    required: true
  within:
    description: Log in to these hosts only, because others are not in the run.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Log in from every node to every node
  rdm.provision.ssh_reach:
    nodes: "{{ preflight_plan.address_map }}"
    within: "{{ ansible_play_hosts }}"
"""

RETURN = r"""
reached: {description: To how many hosts it logged in., returned: success, type: int}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import parse_nodes
from ansible_collections.rdm.provision.plugins.module_utils.jobs.launch_requirements import unreachable

ARGUMENT_SPEC: Dict[str, Any] = {
    "nodes": {"type": "str", "required": True},
    "within": {"type": "list", "elements": "str", "required": True},
}
_SHOWN = 3


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return how many nodes were reached, or name those that were not."""
    within = set(module.params["within"])
    nodes = {name: at for name, at in parse_nodes(module.params["nodes"]).items() if name in within}
    lost = unreachable(list(nodes.items()))
    if lost:
        output = ["{0} at {1} ({2})".format(name, nodes[name], why) for name, why in lost.items()]
        raise NodeError("it cannot log in over ssh to {0}".format(names(output, _SHOWN)))
    return {"reached": len(nodes)}


if __name__ == "__main__":
    main()
