# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.data_distribution`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: data_distribution
short_description: Bring large files of data to many nodes, most of it from node to node
version_added: 0.3.0
description:
  - Brings the files of a directory that are large and that several hosts of the play lack, so that the
    controller sends each about once. It goes as with M(rdm.provision.image_distribution).
  - Run it once, before M(rdm.provision.job_data), whose option C(brought) takes what it returns, and which
    copies all else.
  - With O(from_nodes) the directory is on nodes. All files that hosts of the play lack, large or small, come
    from a node that has them, and the controller gets only digests.
options:
  source:
    description: As for M(rdm.provision.job_data).
    type: path
    required: true
  from_nodes:
    description:
      - Hosts or groups of the inventory whose files below O(source) are sent. A file may be on several of
        them, if it is the same on all.
    type: list
    elements: str
    default: []
  folder:
    description: As for M(rdm.provision.job_data).
    type: str
    default: data
  directories:
    description: Host -> the jobs' directory there.
    type: dict
    required: true
  distribution:
    description:
      - As C(images_distribution). Without O(from_nodes), files go from node to node only with V(peers).
    type: str
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
    description: As C(images_cache_dir).
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: In check mode nothing is brought, and files of nodes are compared.
  diff_mode:
    support: none
    description: What it writes is removed when the file is in its place.
  idempotent:
    support: full
    description: What a node has already is not sent again.
author: The rdm-provision developers
"""

EXAMPLES = r"""
- name: Transfer large files from node to node
  rdm.provision.data_distribution:
    source: tokens
    directories: {node1: /var/lib/rdm/rdm, node2: /var/lib/rdm/rdm, node3: /var/lib/rdm/rdm}
    distribution: peers
  run_once: true
  register: brought

- name: Transfer the checkpoints of two nodes to a third
  rdm.provision.data_distribution:
    source: /var/lib/rdm/rdm/gpt/checkpoints
    from_nodes: [node1, node2]
    directories: {node3: /var/lib/rdm/rdm}
  run_once: true
  register: brought
"""

RETURN = r"""
nodes:
  description:
    - Host -> path of a file below the directory -> where it is on the node.
    - With O(from_nodes), host -> what it lacks, and where on the node it is.
  returned: success
  type: dict
sent:
  description: Path of a file on the controller, or name of a node -> bytes that the source has sent.
  returned: success
  type: dict
"""
