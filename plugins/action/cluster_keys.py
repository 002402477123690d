# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the ssh keys of a cluster; see plugins/modules/cluster_keys.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return whether keys were made."""
        inventory = str(variables.get("inventory_dir") or "")
        directory = cluster_keys.directory_of(options["directory"], inventory)
        try:
            missing = cluster_keys.read(directory) is None
            if missing and not self._task.check_mode:
                cluster_keys.make(directory, options["cluster"])
        except PreconditionFailed as refused:
            raise AnsibleActionFail(str(refused)) from None
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename}: {error.strerror}") from None
        return {"changed": missing}
