# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.image_distribution`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_distribution
short_description: Bring images to many nodes, most of it from node to node
version_added: 0.3.0
description:
  - Reads what M(rdm.provision.image_archive) found on each host of the play, and brings the archives that are
    to be loaded on many of them, so that the source sends each about once.
  - With O(registry=true) and O(distribution=peers), the first host that lacks an image of a registry pulls it
    and sends it to the others. Each host's C(__images_lacking) names the images that it lacks.
  - Run it once, after the inspection and before the load. What it returns goes to the option C(brought) of
    M(rdm.provision.image_archive).
  - A host that is not reached by ssh without a password is left out. It gets an archive directly, or pulls
    the image.
options:
  registry:
    description: Bring images of registries instead of archives.
    type: bool
    default: false
  distribution:
    description: As C(images_distribution).
    type: str
    choices: [auto, direct, peers, mirror]
    default: auto
  network:
    description: As C(images_network).
    type: str
    default: ""
  port:
    description: As C(images_port).
    type: int
    default: 7077
  bandwidth:
    description: As C(images_bandwidth).
    type: float
    default: 0
  cluster:
    description: Name of the cluster, which keeps the files of two on one node apart.
    type: str
    default: ""
  cache_dir:
    description: As for M(rdm.provision.image_archive).
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: In check mode nothing is brought.
  diff_mode:
    support: none
    description: What it writes is removed when the image has been loaded.
  idempotent:
    support: full
    description: What a node has already is not sent again.
author: The rdm-provision developers
"""

EXAMPLES = r"""
- name: Transfer images from node to node
  rdm.provision.image_distribution:
    distribution: auto
  run_once: true
  register: brought
"""

RETURN = r"""
nodes:
  description: Host -> path of an archive, or name of an image -> where it is on the node, or why it is not.
  returned: success
  type: dict
indexes:
  description: Path of an archive, or name of an image -> what is in it.
  returned: success
  type: dict
sent:
  description: Path of an archive, or name of an image -> bytes that the source has sent.
  returned: success
  type: dict
pulled:
  description: Host -> names of the images that it has pulled for others.
  returned: success
  type: dict
"""
