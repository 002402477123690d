# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the ssh keys of a cluster; see plugins/modules/cluster_keys.py."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.modules.cluster_keys import ARGUMENT_SPEC
from ansible_collections.rdm.provision.plugins.plugin_utils import cluster_keys
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Refused


class ActionModule(ActionBase):
    """The action: it works on the controller and talks to no node."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether keys were made."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, options = self.validate_argument_spec(ARGUMENT_SPEC)
        directory = os.path.expanduser(options["directory"])
        try:
            result["changed"] = cluster_keys.read(directory) is None
            if result["changed"] and not self._task.check_mode:
                cluster_keys.make(directory, options["cluster"])
        except Refused as refused:
            raise AnsibleActionFail(str(refused)) from None
        except OSError as error:
            raise AnsibleActionFail(f"{error.filename}: {error.strerror}") from None
        return result
