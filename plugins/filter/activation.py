# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn a Python environment into the file that activates it, and the blocks that source it in shells."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.rdm.provision.plugins.module_utils.base import shell_files

DOCUMENTATION = r"""
name: activation
short_description: The files that activate a Python environment in the shells of one user
description:
  - Returns C(files) and C(blocks) for M(rdm.provision.node_files). They put the environment first on the PATH
    of bash's login shells, interactive shells and ssh commands, and of sh's login shells.
  - zsh has it only if the user has a C(.zshenv), which is not created.
author:
  - The rdm-provision developers
positional: _input
options:
  _input:
    description: The environment's directory on the node; C(%n) is the node's host name.
    type: str
    required: true
  file:
    description: The file that activates the environment.
    type: str
    required: true
  cluster:
    description: Name of the cluster, for the blocks' markers.
    type: str
    required: true
  state:
    description: Whether the file and the blocks exist.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Activate the environment
  rdm.provision.node_files:
    files: "{{ __activation.files }}"
    blocks: "{{ __activation.blocks }}"
  vars:
    __activation: "{{ '~/env' | rdm.provision.activation(file='~/.rdm/activate', cluster='rdm') }}"
"""

RETURN = r"""
_value:
  description: The files and the blocks.
  type: dict
"""


def activation(environment: str, file: str, cluster: str, state: str = "present") -> dict[str, Any]:
    """Return the file and the blocks.

    Raises:
        AnsibleFilterError: a path is invalid.
    """
    try:
        content = {"content": shell_files.activation(environment)} if state == "present" else {}
        name = f"Python environment ({cluster})"
        return {
            "files": [{"path": file, "state": state, **content}],
            "blocks": shell_files.source_blocks(file, name, state=state),
        }
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"activation": activation}
