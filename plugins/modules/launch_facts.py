#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report which pdsh and Open MPI a host has for launchers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_facts
short_description: What launchers find on a host
description:
  - Reads which pdsh and Open MPI are on the PATH that commands over ssh have.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  programs:
    description: Which programs to find.
    type: list
    elements: str
    choices: [pdsh, openmpi]
    required: true
"""

EXAMPLES = r"""
- name: Gather the version of pdsh
  rdm.provision.launch_facts:
    programs: [pdsh]
"""

RETURN = r"""
programs:
  description: For each program its C(version), or in C(problem) why it cannot be used.
  returned: always
  type: dict
  sample: {pdsh: {version: "2.34", problem: ""}}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.jobs import launch_requirements

ARGUMENT_SPEC: Dict[str, Any] = {
    "programs": {
        "type": "list",
        "elements": "str",
        "choices": list(launch_requirements.PROGRAMS),
        "required": True,
    },
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Return the module's result."""
    programs = {name: launch_requirements.program(name)._asdict() for name in module.params["programs"]}
    return {"programs": programs}


if __name__ == "__main__":
    main()
