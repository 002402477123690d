# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the all-reduce over all nodes; see plugins/modules/collective_verdict.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.modules.collective_verdict import ARGUMENT_SPEC
from ansible_collections.rdm.provision.plugins.plugin_utils.collective import judge_collective, table
from ansible_collections.rdm.provision.plugins.plugin_utils.registered import registered


class ActionModule(ActionBase):
    """The action: judges; it talks to no node."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the judgement.

        Raises:
            AnsibleActionFail: an option cannot be.
        """
        variables: dict[str, Any] = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _, options = self.validate_argument_spec(ARGUMENT_SPEC)
        if not 0 < options["slow_share"] < 1:
            raise AnsibleActionFail(f"slow_share must be between 0 and 1, not {options['slow_share']}")
        plan = options["plan"]
        answer = registered(options["progress"], variables).get(plan["master"]) or {}
        job = answer.get("job") or {"state": "not known", "reason": str(answer.get("msg") or "")}
        nodes = {node["name"]: node["address"] for node in plan["nodes"]}
        judged = judge_collective(nodes, job, options["slow_share"])
        result.update(changed=False, collective=judged, msg=table(judged))
        return result
