# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of rdm.provision.job: the place of the node's jobs, and what was read before."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.plugin_utils.job_place import job_place

MODULE = "rdm.provision.job"
OFFSET = "offset"
"""The option and the returned value that say how far a log has been read."""


class ActionModule(ActionBase):
    """Run the module in the node's place; in a loop of `until` each try goes on from the one before."""

    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module."""
        variables = task_vars or {}
        super().run(tmp, variables)
        arguments = dict(self._task.args)
        login = (variables.get("groups") or {}).get("login") or ()
        place = job_place(
            lambda name: self._templar.template(variables.get(name)),
            submits=variables.get("inventory_hostname") in login,
        )
        arguments.setdefault("place", place)
        before = variables.get(self._task.register) if self._task.until and self._task.register else None
        if isinstance(before, dict) and before.get(OFFSET) is not None:
            arguments[OFFSET] = before[OFFSET]
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args=arguments, task_vars=variables
        )
        return result
