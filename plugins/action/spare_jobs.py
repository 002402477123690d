# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse what would end running training jobs; see plugins/modules/spare_jobs.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.modules.spare_jobs import ARGUMENT_SPEC
from ansible_collections.rdm.provision.plugins.plugin_utils.ended_jobs import ended_jobs
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Refused, rehearsal
from ansible_collections.rdm.provision.plugins.plugin_utils.registered import registered


class ActionModule(ActionBase):
    """The action: collects and judges; it talks to no node."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return nothing, or the refusal."""
        variables: dict[str, Any] = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _, options = self.validate_argument_spec(ARGUMENT_SPEC)
        answers = registered(options["jobs"], variables)
        running = {host: answer.get("running") or [] for host, answer in answers.items()}
        whole = options["ends"] == "node"
        problems = ended_jobs(running, whole)
        result["changed"] = False
        if problems and self._task.check_mode:
            result["warnings"] = rehearsal(problems)
        elif problems:
            # What no job needs, such as an image, may have been changed before.
            result.update(
                Refused(
                    problems, before="the node was rebooted" if whole else "a container was touched"
                ).result("nodes")
            )
        return result
