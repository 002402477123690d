#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take or release the lock of a cluster on a node; see DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_lock
short_description: Take or release the lock of a cluster on a node
description:
  - Keeps runs from two machines, or two clones of an inventory, from changing a node at the same time.
  - A lock counts while a call of its run is at work on the node, and a minute after that, so that a run which
    was killed keeps nobody out for long. M(rdm.provision.node_facts) takes it in the same call.
version_added: 0.2.0
extends_documentation_fragment:
  - rdm.provision.attributes.no_diff
  - rdm.provision.lock.required
attributes:
  check_mode:
    support: full
    description: In check mode the lock is neither taken nor released.
  idempotent:
    support: full
    description: A lock is never reported as a change.
options:
  state:
    description: Whether the run should hold the lock afterwards; V(seen) leaves it as it is.
    type: str
    choices: [held, free, seen]
    default: held
  config_dir:
    description: Directory of the cluster's files on the node; with it, C(origin) is returned.
    type: str
    default: ''
  ended:
    description: Marks of runs that are known to have ended; their locks do not count.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Take the lock
  rdm.provision.node_lock:
    lock: "{{ preflight_plan.lock }}"
"""

RETURN = r"""
holder:
  description: Who else holds the lock, as C(run) and C(leader); empty for nobody.
  returned: success
  type: dict
origin:
  description:
    - Where the cluster of this name was made, as M(rdm.provision.node_facts) returns it; empty where
      O(config_dir) has no files of the cluster.
  returned: success
  type: dict
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.rdm.provision.plugins.module_utils.base.invocation import as_module
from ansible_collections.rdm.provision.plugins.module_utils.state import node_lock
from ansible_collections.rdm.provision.plugins.module_utils.state.cluster_files import origin_of

ARGUMENT_SPEC: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["held", "free", "seen"], "default": "held"},
    "lock": {"type": "dict", "required": True, "options": node_lock.ARGUMENTS},
    "config_dir": {"type": "str", "default": ""},
    "ended": {"type": "list", "elements": "str", "default": []},
}


@as_module(ARGUMENT_SPEC)
def main(module: AnsibleModule) -> Dict[str, Any]:
    """Read, take or release the lock, and return the module's result."""
    wanted, directory = module.params["lock"], module.params["config_dir"]
    found: Dict[str, Any] = {}
    if module.check_mode or module.params["state"] == "seen":
        found = node_lock.holder(wanted["cluster"])
    elif module.params["state"] == "held":
        found = node_lock.take(wanted, module.params["ended"])
    else:
        node_lock.release(wanted)
    return {"holder": found, "origin": origin_of(wanted["cluster"], directory) if directory else {}}


if __name__ == "__main__":
    main()
