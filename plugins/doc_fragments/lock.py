# SPDX-License-Identifier: GPL-3.0-or-later
"""The option of the modules that hold the lock of a cluster."""

from __future__ import annotations

_LOCK = """
options:
  lock:
    description: The run that changes the node, C(lock) of M(rdm.provision.plan).
    type: dict
    required: {required}
    version_added: 0.2.0
    suboptions:
      cluster:
        description: Name of the cluster.
        type: str
        required: true
      run:
        description: Identifier of the run.
        type: str
        required: true
      home:
        description: Identifier of its inventory.
        type: str
        required: true
      leader:
        description: The process that leads the run.
        type: dict
        required: true
"""


class ModuleDocFragment:
    """The fragments for C(extends_documentation_fragment)."""

    DOCUMENTATION = _LOCK.format(required="false")
    REQUIRED = _LOCK.format(required="true")
