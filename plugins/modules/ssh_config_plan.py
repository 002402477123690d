# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.ssh_config_plan`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_config_plan
short_description: Decide how bare hosts reach each other over ssh
description:
  - Takes the keys by which the controller's own ssh knows the hosts, compares them with the file
    C(ssh_host_keys) beside the inventory, completes that, and returns the content of ssh's files. Run it
    once.
  - A host that has another key than the file says is refused.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.no_diff
attributes:
  check_mode:
    support: full
    description: In check mode the file is not written.
options:
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  nodes:
    description: What M(rdm.provision.plan) returned as C(nodes).
    type: dict
    required: true
  directory:
    description: Directory of ssh's files on the hosts.
    type: str
    required: true
  identity:
    description: File on the hosts with the private key; C(%n) is the host's name.
    type: str
    required: true
  jump_host:
    description: What the controller's way to the hosts goes through; empty for a direct one.
    type: str
    default: ""
  keep_alive:
    description: Seconds between signs of life.
    type: int
    default: 15
"""

RETURN = r"""
config: {description: The ssh_config of the hosts., returned: success, type: str}
known_hosts: {description: Their known_hosts., returned: success, type: str}
controller_config:
  description: An ssh_config with which the controller reaches the hosts, through the jump host.
  returned: success
  type: str
saved: {description: Whether the file beside the inventory was written., returned: success, type: bool}
rdm_refused: {description: "Who refuses, V(nodes).", returned: when it is refused, type: str}
problems:
  description: Everything that does not fit, as C(node), C(value), C(reason) and C(hint).
  returned: when it is refused
  type: list
  elements: dict
"""
