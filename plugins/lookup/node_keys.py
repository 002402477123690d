# SPDX-License-Identifier: GPL-3.0-or-later
"""Return the ssh key files of a node; see DOCUMENTATION."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys

DOCUMENTATION = r"""
name: node_keys
short_description: The ssh key files of a node
version_added: 0.2.0
author: The rdm-provision developers
description:
  - Derives a node's host key and its certificate from the cluster's keys on the controller, and returns the
    text of each ssh file of the node, by name. The texts are the same on every machine and in every run.
options:
  _terms:
    description: The directory of the cluster's keys on the controller.
    type: str
    required: true
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  node:
    description: Name of the node.
    type: str
    required: true
  my_ip:
    description: Its address on the container network, for which its host certificate is valid.
    type: str
    required: true
  missing_ok:
    description: Return empty texts if the keys do not exist yet.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show the host certificate of a node
  ansible.builtin.debug:
    msg: "{{ lookup('rdm.provision.node_keys', inventory_dir ~ '/.rdm/ssh', cluster='rdm', node='node1',
      my_ip='192.169.16.100')['ssh_host_ed25519_key-cert.pub'] }}"
"""

RETURN = r"""
_raw:
  description:
    - The text of C(id_ed25519), C(authorized_keys), C(ssh_host_ed25519_key),
      C(ssh_host_ed25519_key-cert.pub) and C(known_hosts).
  type: list
  elements: dict
"""


class LookupModule(LookupBase):
    """The lookup."""

    def run(self, terms: list[Any], variables: Any = None, **options: Any) -> list[Any]:
        """Return the files of one node."""
        self.set_options(var_options=variables, direct=options)
        directory = os.path.expanduser(str(terms[0]))
        try:
            keys = cluster_keys.read(directory)
        except PreconditionFailed as refused:
            raise AnsibleError(str(refused)) from None
        if keys is None:
            if self.get_option("missing_ok"):
                return [dict.fromkeys(cluster_keys.FILES, "")]
            raise AnsibleError(f"the cluster's ssh keys are not in {directory}")
        node = [str(self.get_option(name)) for name in ("cluster", "node", "my_ip")]
        return [cluster_keys.of_node(keys, *node)]
