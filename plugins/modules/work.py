# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.work`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: work
short_description: Decide which nodes have work, and for which roles
description:
  - Collects what M(rdm.provision.node_facts) with O(rdm.provision.node_facts#module:inputs) has found on the
    hosts of the play, and adds the roles that follow others. Run it once, after facts were gathered.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
attributes:
  check_mode:
    support: full
    description: Nodes without an engine have nothing but the engine to check in check mode.
options:
  facts:
    description: Name of the variable that M(rdm.provision.node_facts) was registered in.
    type: str
    default: preflight_facts
  state_files:
    description: What M(rdm.provision.plan) returned as C(state_files).
    type: dict
    required: true
    aliases: [receipts]
  recheck:
    description: Let every role check for itself, whatever was found.
    type: bool
    default: false
"""

RETURN = r"""
why:
  description: For each node with work, its roles in their order, and why.
  returned: always
  type: dict
  sample: {n2: {hostfile: ["/etc/rdm/job/hostfile has changed: content"]}}
bundled:
  description: For each node, what the call that runs its container writes, too, and no play of its own does.
  returned: always
  type: dict
  sample: {n3: [my_ip, hostfile, state_file]}
plays:
  description:
    - The hosts of each role's play, and of the plays C(inspect), C(absent), C(state_file), C(release)
      and C(verify).
    - Nodes with work, and one more, where there is one, that has none. Ansible ends the whole run when all
      hosts of a play have failed.
    - No state files are written in check mode, and with C(--tags), C(--skip-tags) or C(--step).
  returned: always
  type: dict
  sample: {hostfile: [n2, n1], state_file: [n2, n1], verify: [n1, n2, n3]}
"""
