# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions that drop their arguments when they end.

Ansible returns the arguments of a task with its result, and keeps those of every node until the last node has
ended. With the list of all nodes as an argument, that would take memory for N times N lines.
"""

from __future__ import annotations

from typing import Any

from ansible.playbook.task import Task
from ansible.plugins.action.normal import ActionModule as Normal


def drop_arguments(task: Task) -> None:
    """Drop a task's arguments in the process that ran it, unless it may be repeated there."""
    if not task.until and task.retries is None:
        task.args = {}


class DroppedArguments(Normal):
    """Runs the module, as Ansible does if there is no action of its name."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module returns."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        # An asynchronous task is polled later.
        if not self._task.async_val:
            drop_arguments(self._task)
        return result
