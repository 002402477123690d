# SPDX-License-Identifier: GPL-3.0-or-later
"""The option of the modules that hold the lock of a cluster."""

from __future__ import annotations

_LOCK = """
options:
  lock:
    description: Which run changes the node, as C(lock) of M(rdm.provision.plan) says.
    type: dict
    required: {required}
    version_added: 0.2.0
    suboptions:
      cluster:
        description: Name of the cluster.
        type: str
        required: true
      run:
        description: The run's mark.
        type: str
        required: true
      home:
        description: The mark of the inventory from which it works.
        type: str
        required: true
      leader:
        description: The process that leads it.
        type: dict
        required: true
"""


class ModuleDocFragment:
    """The fragments for C(extends_documentation_fragment)."""

    DOCUMENTATION = _LOCK.format(required="false")
    REQUIRED = _LOCK.format(required="true")
