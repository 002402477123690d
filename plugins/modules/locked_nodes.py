# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.locked_nodes`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: locked_nodes
short_description: Lock all nodes of a play against other runs, or refuse
description:
  - Takes the lock of the cluster on every host of the play, in threads, and refuses with every node on which
    another run holds it, before anything is changed. Run it once.
  - Refuses also with every node on which a cluster of this name was made from another inventory. Its ssh
    authority shows it, which is in O(keys), or in the plan file beside the inventory.
  - A host that cannot be reached, or not in a thread, is left without a lock.
  - Does nothing where the run does not hold the lock beside its inventory, as
    P(rdm.provision.cluster_lock#lookup) takes it.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.reads
options:
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  state:
    description: Whether to take the locks or to release them.
    type: str
    choices: [held, free]
    default: held
  config_dir:
    description: Directory of the cluster's files on the nodes; empty for clusters without keys.
    type: str
    default: ''
  keys:
    description: Directory of the cluster's keys on the controller; C(.rdm/ssh) beside the inventory if empty.
    type: str
    default: ''
  new_keys:
    description: Whether the user says that the keys of the cluster on the nodes are lost.
    type: bool
    default: false
  root:
    description: Whether root takes the locks whatever C(rdm_become) says, as in a play that is always root's.
    type: bool
    default: false
  connections:
    description: The connection plugins that work in threads.
    type: list
    elements: str
    default: [ssh]
"""

RETURN = r"""
rdm_refused: {description: "Who refuses, V(nodes).", returned: when it is refused, type: str}
problems:
  description: Every node on which another run is at work, as C(node), C(value), C(reason) and C(hint).
  returned: when it is refused
  type: list
  elements: dict
"""
