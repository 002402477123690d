# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse what would end running jobs; see plugins/modules/protect_jobs.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.checks.running_jobs import ended_jobs
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    dry_run,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return nothing, or the precondition failure."""
        answers = registered(options["jobs"], variables)
        running = {host: answer.get("running") or [] for host, answer in answers.items()}
        whole = options["ends"] == "node"
        problems = ended_jobs(running, whole)
        if problems and self._task.check_mode:
            return {"warnings": dry_run(problems)}
        if problems:
            # Other things, such as images, may have changed already.
            raise PreconditionFailed(
                problems, before="the node was rebooted" if whole else "a container was touched"
            )
        return {}
