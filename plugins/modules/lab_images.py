#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the images that a lab needs, from a registry or from the distribution's packages."""

from __future__ import annotations

DOCUMENTATION = r"""
module: lab_images
short_description: Make the images that a lab needs
description:
  - Makes three images. The node image stays in this machine's Docker Engine. The CPU image, which the cluster
    under test runs its containers from, and the stand-in of the SR-IOV plugin become archives in a cache.
  - With O(trainer) also the training image, the CPU image with torch and the trainer.
  - With O(machines) also the disk, kernel and initrd of nodes that are virtual machines, and the image of the
    containers that these run in.
  - They are made again only when their recipe has changed. Where no registry answers, root file systems are
    made with mmdebstrap, which is installed where it is missing and this user is root.
  - Runs on the control machine.
requirements:
  - The package docker (the Docker SDK for Python) beside Ansible; rdm-provision brings it.
author:
  - The rdm-provision developers
attributes:
  check_mode:
    support: full
    description: Says whether images would be made.
  diff_mode:
    support: none
    description: Images have no readable difference.
  idempotent:
    support: full
    description: A second run changes nothing.
options:
  state:
    description: Whether the images are there. C(absent) removes them of every recipe, with the cache.
    type: str
    choices: [present, absent]
    default: present
  files:
    description: The directory with the files of the recipe; needed to make images.
    type: path
  cache:
    description:
      - The directory that keeps the archives.
      - Empty means C(rdm-provision) in the user's cache directory (C($XDG_CACHE_HOME), else C(~/.cache)).
    type: str
    default: ""
  source:
    description:
      - Where the images come from. C(registry) builds on O(base). C(packages) uses mmdebstrap with the
        machine's own package sources. C(auto) tries the registry and falls back to packages.
    type: str
    choices: [auto, registry, packages]
    default: auto
  base:
    description: The image that C(registry) builds on.
    type: str
    default: docker.io/library/debian:bookworm-slim
  trainer:
    description:
      - The directory C(trainer) of the project. Empty means that no training image is wanted.
      - What it installs is made again when its list changes, and the layer with its sources when these do.
      - With O(slurm) jobs run on the nodes themselves. So no image is made, and the packages that it would
        install are downloaded.
    type: str
    default: ""
  extras:
    description: What else than a training the packages of O(trainer) are for.
    type: list
    elements: str
    choices: [finetune]
    default: []
  slurm:
    description: Whether the nodes' image has Slurm's packages, on top of the others.
    type: bool
    default: false
  machines:
    description: Whether nodes are virtual machines. Their disk is always made from packages.
    type: bool
    default: false
  engine:
    description:
      - The Docker Engine of nodes that are virtual machines, C(20.10), C(26.1), or C(newest) for the last one
        that Debian has. Empty means C(26.1).
      - Nodes that are containers have that of this machine's release, or C(podman).
    type: str
    default: ""
  kernel:
    description:
      - The kernel of nodes that are virtual machines, C(6.12), or C(newest) for the last one that the
        backports of their release have. Empty means C(6.12).
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Make the lab's images
  rdm.provision.lab_images:
    files: "{{ role_path }}/files"
"""

RETURN = r"""
node_image:
  description: The name of the node image in this machine's engine.
  returned: when O(state=present)
  type: str
  sample: rdm-lab/node:0123456789ab
archives:
  description: The directory with C(cpu.tar) and C(sriov-plugin.tar).
  returned: when O(state=present)
  type: str
train_archive:
  description: The name of the training image's archive, beside the others.
  returned: when O(state=present), O(trainer) is given and O(slurm=false)
  type: str
  sample: train-01234567-89abcdef.tar
packages:
  description: The name of the directory with the trainer's packages, beside the archives.
  returned: when O(state=present), O(trainer) is given and O(slurm=true)
  type: str
  sample: packages-01234567
torch:
  description: The requirement of the torch among the packages.
  returned: when RV(packages) is
  type: str
  sample: torch==2.13.0+cpu
machine_image:
  description: The name of the image of the containers that virtual machines run in.
  returned: when O(state=present) and O(machines=true)
  type: str
  sample: rdm-lab/machine:0123456789ab
machine:
  description: The directory with disk, kernel and initrd of the virtual machines.
  returned: when O(state=present) and O(machines=true)
  type: str
"""
