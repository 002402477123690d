# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell Ansible that hosts cannot be reached; see plugins/modules/unreachable.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.modules.unreachable import ARGUMENT_SPEC


class ActionModule(ActionBase):
    """The action: it talks to no node."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return nothing for a host that can be reached.

        Raises:
            AnsibleConnectionFailure: with the sentence for this host, of which Ansible makes "unreachable".
        """
        variables: dict[str, Any] = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _, options = self.validate_argument_spec(ARGUMENT_SPEC)
        said = options["hosts"].get(variables["inventory_hostname"])
        if said is not None:
            raise AnsibleConnectionFailure(str(said))
        result.update(changed=False)
        return result
