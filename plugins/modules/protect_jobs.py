# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.protect_jobs`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: protect_jobs
short_description: Refuse what would end running training jobs
description:
  - Takes what M(rdm.provision.job) with C(verb=running) registered on the hosts of the play, and refuses with
    every job of every node where there is any. Run it once, before the change. Hosts that have registered
    nothing are not meant.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
attributes:
  check_mode:
    support: full
    description: In check mode it does not fail, and a warning says what would be refused.
options:
  ends:
    description: What would end them, the end of their V(container) or that of the whole V(node).
    type: str
    choices: [container, node]
    default: container
    version_added: 0.2.0
  jobs:
    description: Name of the variable that M(rdm.provision.job) was registered in.
    type: str
    required: true
"""

RETURN = r"""
rdm_refused: {description: "Who refuses, V(nodes).", returned: when it is refused, type: str}
problems:
  description: Every job on every node, as C(node), C(value), C(reason) and C(hint).
  returned: when it is refused
  type: list
  elements: dict
"""
