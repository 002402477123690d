# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell Ansible that hosts cannot be reached; see plugins/modules/unreachable.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.rdm.provision.plugins.modules.unreachable import DOCUMENTATION
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import (
    Decision,
    documented_options,
)


class ActionModule(Decision):
    """The action: it talks to no node."""

    ARGUMENTS = documented_options(DOCUMENTATION)

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return nothing for a host that can be reached.

        Raises:
            AnsibleConnectionFailure: with the sentence for this host, of which Ansible makes "unreachable".
        """
        output = options["hosts"].get(variables["inventory_hostname"])
        if output is not None:
            raise AnsibleConnectionFailure(str(output))
        return {}
