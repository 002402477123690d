#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a lab on this machine, or take it away."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lab
short_description: Make a miniature cluster on this machine, or take it away
description:
  - A lab node is a container, or a virtual machine within one,
    with sshd and its own Docker Engine, on a management network, with a second
    interface C(ib0) plugged into a switch that lives in a network namespace of its own.
  - Besides the inventory directory, everything of a lab is an object of this machine's Docker Engine with the
    label C(rdm.provision.lab).
  - Runs on the control machine, as root or as a user that may use the engine.
requirements:
  - The package docker (the Docker SDK for Python) beside Ansible; rdm-provision brings it.
author:
  - The rdm-provision developers
extends_documentation_fragment: rdm.provision.attributes.changes
attributes:
  diff_mode:
    support: full
    description: Shows what happens to the nodes and the lines of the inventory that change.
options:
  name:
    description: The lab's name, up to 30 lower-case letters, digits and hyphens.
    type: str
    required: true
  state:
    description: Whether the lab is there, with all nodes running and plugged in.
    type: str
    choices: [present, absent]
    default: present
  nodes:
    description: The number of nodes. Nodes beyond it are removed, missing ones are added.
    type: int
    default: 3
  directory:
    description:
      - The directory of the inventory. It belongs to the lab and goes away with it.
      - With O(state=absent) it may be left out; the lab knows where it is.
    type: path
  hardware:
    description:
      - What a node is. C(container) is a container that is as much of a host as this machine allows.
        C(vm) is a virtual machine with a network card that has virtual functions, in a container of its own.
    type: str
    choices: [container, vm]
    default: container
  machine_image:
    description: The image of the containers that virtual machines run in.
    type: str
  machine:
    description: The directory with disk, kernel and initrd of virtual machines.
    type: path
  driver:
    description: The driver of the container network that the inventory asks for.
    type: str
    choices: [macvlan, bridge, ipvlan, sriov]
    default: macvlan
  node_image:
    description: The image of the nodes, in this machine's engine.
    type: str
  archives:
    description: The directory with the image archives that the nodes see.
    type: path
  train_archive:
    description:
      - The name of the training image's archive in O(archives). Then the cluster's containers run this image.
      - Empty means the CPU image, which has no trainer.
    type: str
    default: ""
  slurm:
    description:
      - Whether the nodes are to be a Slurm cluster. They share a directory C(/shared) then, have device
        files that stand in for GPUs, and the inventory says which partition each is in.
      - O(node_image) has to be one with Slurm's packages.
    type: bool
    default: false
  podman:
    description: Whether the nodes' engine is Podman. O(node_image) has to be one with it.
    type: bool
    default: false
    version_added: 0.6.0
  packages:
    description:
      - The name of the directory in O(archives) with the trainer's packages, from which the nodes of a Slurm
        cluster make their Python environment. Empty means that they ask the indexes.
    type: str
    default: ""
  torch:
    description: The requirement of the torch in O(packages).
    type: str
    default: ""
  extras:
    description: What else than a training O(packages) are for.
    type: list
    elements: str
    default: []
  rails:
    description:
      - How many interfaces each node has on the fabric, C(ib0), C(ib1) and so on, each on its own switch.
        Of a virtual machine, each is a network card with virtual functions of its own.
    type: int
    default: 1
  timeout:
    description: Seconds within which new nodes have to be ready.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: Make a lab of three nodes
  rdm.provision.lab:
    name: lab
    nodes: 3
    directory: "{{ lookup('env', 'PWD') }}/inventory/lab"
    node_image: "{{ __lab_images.node_image }}"
    archives: "{{ __lab_images.archives }}"

- name: Take it away
  rdm.provision.lab:
    name: lab
    state: absent
"""

RETURN = r"""
inventory:
  description: The inventory directory.
  returned: when O(state=present)
  type: str
nodes:
  description: The nodes, each with C(name) and C(address).
  returned: when O(state=present)
  type: list
  elements: dict
virtualisation:
  description: >-
    C(kvm) where the processor runs the nodes' instructions, C(tcg) where QEMU translates them, which takes
    some twenty times as long. Empty for nodes that are containers.
  returned: when O(state=present)
  type: str
actions:
  description: What was done, or would be done, one sentence each.
  returned: always
  type: list
  elements: str
"""
