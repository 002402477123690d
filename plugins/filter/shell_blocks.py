# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables to the blocks that set them in every kind of shell."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.rdm.provision.plugins.module_utils.base import shell_files

DOCUMENTATION = r"""
name: shell_blocks
short_description: The blocks that set variables in every kind of shell of a node
description:
  - Returns the blocks of M(rdm.provision.node_files) that set the variables in login shells, interactive
    shells and non-interactive ssh commands, for all users or for one.
author:
  - The rdm-provision developers
positional: _input
options:
  _input:
    description: Names and IPv4 addresses.
    type: dict
    required: true
  cluster:
    description: Names the blocks, so that several clusters can share a node.
    type: str
    required: true
  system:
    description: For all users, which needs root; otherwise for the user who runs the module.
    type: bool
    required: true
  zsh:
    description: Whether a zsh is installed.
    type: bool
    default: false
  csh:
    description: Whether a csh is installed.
    type: bool
    default: false
  state:
    description: Whether the blocks are to be there.
    type: str
    choices: [present, absent]
    default: present
  source:
    description:
      - A file that sets the variables. Where C(%n), the node's host name, is in its path, the blocks are the
        same on all nodes, and read it, since nodes may share a home.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Export MY_IP
  rdm.provision.node_files:
    blocks: "{{ {'MY_IP': '192.169.16.100'} | rdm.provision.shell_blocks(cluster='rdm', system=true) }}"
"""

RETURN = r"""
_value:
  description: The blocks.
  type: list
  elements: dict
"""


def shell_blocks(
    variables: dict[str, str],
    cluster: str,
    system: bool,
    zsh: bool = False,
    state: str = "present",
    source: str = "",
    csh: bool = False,
) -> list[dict[str, Any]]:
    """Return the blocks; what is wrong with the variables becomes the task's message."""
    try:
        return shell_files.shell_blocks(variables, cluster, system, zsh, state=state, source=source, csh=csh)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """What Ansible asks for the filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"shell_blocks": shell_blocks}
