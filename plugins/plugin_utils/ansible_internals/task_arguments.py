# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions that let go of their arguments when they have ended.

Ansible sends all arguments of a task back with its result, and keeps those of every node until the last one
has ended. The list of the cluster's nodes is one, so that they would take N times N lines.
"""

from __future__ import annotations

from typing import Any

from ansible.playbook.task import Task
from ansible.plugins.action.normal import ActionModule as Normal


def let_go(task: Task) -> None:
    """Forget a task's arguments, in the process that has run it, unless it may be run there once more."""
    if not task.until and task.retries is None:
        task.args = {}


class DroppedArguments(Normal):
    """Runs the module, as Ansible does where there is no action of its name."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module returns."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        # An asynchronous task is polled later.
        if not self._task.async_val:
            let_go(self._task)
        return result
