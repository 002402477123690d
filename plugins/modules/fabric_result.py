# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.fabric_result`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_result
short_description: Evaluate the fabric from the measurements of all nodes
description:
  - Takes what M(rdm.provision.fabric_probe) registered on every host of the play and says for each node
    whether it takes its part in the fabric, and if not, why.
  - A fault is named once. One node that is cut off is not named again by each of its peers.
  - If one node of a pair is not in this run (because of C(--limit), or because it was not reached), the pair
    can only lead to a warning.
  - It does not fail on a bad result, so that the play can fail the very nodes that are at fault. Run it
    once.
version_added: 0.1.0
extends_documentation_fragment: rdm.provision.attributes.reads
attributes:
  check_mode:
    support: full
    description: In check mode a node whose container does not run yet counts as not in this run.
options:
  nodes:
    description: The whole cluster in the order of ranks, one line C(name MY_IP) per node.
    type: str
    required: true
  measurements:
    description:
      - Name of the variable that M(rdm.provision.fabric_probe) was registered in; with C(_all) added, of that
        which has the result of M(rdm.provision.run_on_all).
    type: str
    required: true
  hosts:
    description: The hosts of this run. Empty means those of the play.
    type: list
    elements: str
    default: []
  rails:
    description:
      - Name and subnet of each rail, as M(rdm.provision.fabric_probe) got them. With several, each is
        evaluated by itself, and every finding, warning and reason names its rail.
    type: dict
    default: {}
    version_added: 0.2.0
  work:
    description:
      - In check mode, for each node that a run would work on, its roles and why, as M(rdm.provision.work)
        returns it.
      - Where the roles have found that the container or the network below it is to change, the node is in
        RV(fabric), and neither it nor what fails between it and others is in RV(faulty). Its answers count
        for those who got them.
    type: dict
    default: {}
    version_added: 0.2.0
  slow_factor:
    description: A node is slow when its links take so many times the median of the cluster...
    type: float
    default: 4.0
  slow_floor_us:
    description: ...and at least so many microseconds longer than that.
    type: float
    default: 300.0
"""

RETURN = r"""
faulty:
  description: The nodes to fail, and why.
  returned: always
  type: dict
  sample: {n3: "no answer from any peer: its interface eth0 has no link"}
fabric:
  description:
    - The result, as C(as_dict) in C(plugin_utils/fabric/fabric.py) returns it.
    - With several rails also C(rails), the result of each. Verdicts, findings, warnings and slow nodes are
      those of all rails, everything else is the first one's.
  returned: always
  type: dict
msg: {description: "The same for people, as a table.", returned: always, type: str}
"""
