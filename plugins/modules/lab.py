#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create a lab on this machine, or remove it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lab
short_description: Make a miniature cluster on this machine, or remove it
description:
  - A lab node is a container, or a virtual machine within one,
    with sshd and its own Docker Engine, on a management network, with a second
    interface C(ib0) plugged into a switch that lives in a network namespace of its own.
  - Besides the inventory directory, everything of a lab is an object of this machine's Docker Engine with the
    label C(rdm.provision.lab).
  - Makes the images first, in this machine's engine and in a cache, and again only when their recipe has
    changed. Where no registry answers, root file systems are made with mmdebstrap, which is installed where
    it is missing and this user is root.
  - Runs on the control machine, as root or as a user that may use the engine.
requirements:
  - The package docker (the Docker SDK for Python) beside Ansible; rdm-provision brings it.
extends_documentation_fragment: rdm.provision.attributes.changes
options:
  desired:
    description: What the lab should be. Its keys are the variables of the role lab.
    type: dict
    required: true
"""

RETURN = r"""
inventory: {description: The inventory directory., returned: when the lab should be present, type: str}
nodes:
  description: The nodes, each with C(name) and C(address).
  returned: when the lab should be present
  type: list
  elements: dict
virtualisation:
  description: >-
    C(kvm) where the processor runs the nodes' instructions, C(tcg) where QEMU translates them, which takes
    some twenty times as long. Empty for nodes that are containers.
  returned: when the lab should be present
  type: str
actions:
  description: What was done, or would be done, one sentence each.
  returned: always
  type: list
  elements: str
"""
