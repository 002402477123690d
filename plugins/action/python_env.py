# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of rdm.provision.python_env: copy the files that a node needs."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

MODULE = "rdm.provision.python_env"


class ActionModule(ActionBase):
    """Runs the module to see what the node needs, copies that, and runs the module again."""

    TRANSFERS_FILES = True
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module, once or twice."""
        variables = task_vars or {}
        super().run(tmp, variables)
        arguments = dict(self._task.args)
        seen = self._module(arguments, variables)
        if not seen.get("needed"):
            return seen
        if self._connection._shell.tmpdir is None:
            self._make_tmp_path()
        folder = self._connection._shell.tmpdir
        try:
            copies = {}
            for name in ("wheel", *(("uv",) if arguments.get("method") == "uv" else ())):
                source = str(arguments[name])
                copies[name] = self._connection._shell.join_path(folder, os.path.basename(source))
                try:
                    self._connection.put_file(source, copies[name])
                except AnsibleError as error:
                    raise AnsibleActionFail(f"{source} could not be copied to the node: {error}") from error
            self._fixup_perms2([folder, *copies.values()])
            return self._module({**arguments, "copies": copies}, variables)
        finally:
            self._remove_tmp_path(folder)

    def _module(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._execute_module(
            module_name=MODULE, module_args=arguments, task_vars=variables
        )
        return result
