# SPDX-License-Identifier: GPL-3.0-or-later
"""Report hosts to Ansible as unreachable; see plugins/modules/unreachable.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return nothing for a reachable host.

        Raises:
            AnsibleConnectionFailure: with this host's sentence; Ansible reports it as unreachable.
        """
        output = options["hosts"].get(variables["inventory_hostname"])
        if output is not None:
            raise AnsibleConnectionFailure(str(output))
        return {}
