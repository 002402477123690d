# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.python_lock`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_lock
short_description: Decide what the Python environments of bare hosts are made of
description:
  - Makes a lock file with hashes of the trainer's requirements, with uv, and keeps it beside the inventory as
    C(python_env.lock). One that was made of the same requirements stays as it is.
  - Builds the trainer's wheel. Run it once.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.no_diff
attributes:
  check_mode:
    support: full
    description: In check mode the lock file is made and not written.
  idempotent:
    support: full
    description: The same requirements keep the same lock file.
options:
  python:
    description: The version of the environments' Python, such as V(3.11).
    type: str
    required: true
  torch:
    description: The requirement of torch in place of the trainer's own, such as V(torch==2.13.0+cpu).
    type: str
    default: ""
  extras:
    description: What else than a training the environments are for.
    type: list
    elements: str
    choices: [finetune]
    default: []
  torch_backend:
    description:
      - Which of PyTorch's own indexes is taken as well, such as V(cpu), V(cu128) or V(rocm6.4).
      - V(auto) is the one that uv takes for what O(gpus) says of each node.
    type: str
    default: ""
  gpus:
    description: Name of the variable that M(rdm.provision.gpu_driver) was registered in; for V(auto).
    type: str
    default: ""
  per_node:
    description: With V(auto), whether nodes may need different builds. Each has a lock file of its own then.
    type: bool
    default: false
  index_url:
    description: The packages' index. Empty means PyPI.
    type: str
    default: ""
  extra_index_urls:
    description: Further ones.
    type: list
    elements: str
    default: []
  find_links:
    description: Directories on the controller, or addresses of pages, with packages.
    type: list
    elements: str
    default: []
  proxy:
    description: For HTTP and HTTPS.
    type: str
    default: ""
"""

RETURN = r"""
nodes:
  description: For each node its C(lock), the text, and its C(torch_backend).
  returned: success
  type: dict
wheel: {description: "The trainer's wheel, on the controller.", returned: success, type: str}
program: {description: Its name and the digest of its sources., returned: success, type: str}
uv: {description: "The program uv, on the controller.", returned: success, type: str}
rdm_refused: {description: "Who refuses, V(inventory) or V(nodes).", returned: when it is refused, type: str}
problems:
  description: Every problem, with C(node), C(value), C(reason) and C(hint).
  returned: when it is refused
  type: list
  elements: dict
"""
