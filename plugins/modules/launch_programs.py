# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.launch_programs`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_programs
short_description: See that a program of launchers is the same on all hosts
description:
  - Takes what M(rdm.provision.launch_facts) registered on the hosts of the play. Hosts that lack the program
    are named in a warning, because other launchers need none. Different versions are refused.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  program:
    description: Which one.
    type: str
    choices: [pdsh, openmpi]
    required: true
  gathered:
    description:
      - Names of the variables that M(rdm.provision.launch_facts) was registered in; the last one counts.
    type: list
    elements: str
    required: true
"""

RETURN = r"""
versions:
  description: The version on each host that has the program.
  returned: success
  type: dict
  sample: {n1: "2.34", n2: "2.34"}
rdm_refused: {description: "Who refuses, V(nodes).", returned: when it is refused, type: str}
problems:
  description: Every host with another version, as C(node), C(value), C(reason) and C(hint).
  returned: when it is refused
  type: list
  elements: dict
"""
