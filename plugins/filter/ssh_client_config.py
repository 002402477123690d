# SPDX-License-Identifier: GPL-3.0-or-later
"""A dictionary of nodes to the ssh client's configuration in the containers."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.rdm.provision.plugins.module_utils import ssh_files

DOCUMENTATION = r"""
name: ssh_client_config
short_description: The ssh client's configuration in the containers of a cluster
description:
  - Returns an ssh_config with which root reaches every container by node name and by MY_IP, with its own key
    and with the host key checked.
author:
  - The rdm-provision developers
positional: _input
options:
  _input:
    description: The dictionary, one line C(node MY_IP) for each node.
    type: str
    required: true
  alias:
    description: The name under which known_hosts has the one host key of all containers.
    type: str
    required: true
  port:
    description: Where the containers' sshd listens.
    type: int
    default: 22
  directory:
    description: Where the keys are, in the container.
    type: str
    default: /etc/rdm/ssh
"""

EXAMPLES = r"""
- name: Show the configuration
  ansible.builtin.debug:
    msg: "{{ preflight_plan.dictionary | rdm.provision.ssh_client_config(alias='rdm') }}"
"""

RETURN = r"""
_value:
  description: The text of the configuration.
  type: str
"""


def ssh_client_config(dictionary: str, alias: str, port: int = 22, directory: str = "/etc/rdm/ssh") -> str:
    """Return the configuration; what is wrong with the dictionary becomes the task's message."""
    try:
        return ssh_files.ssh_client_config(dictionary, alias, port, directory)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """What Ansible asks for the filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"ssh_client_config": ssh_client_config}
