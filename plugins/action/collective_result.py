# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate the all-reduce over all nodes; see plugins/modules/collective_result.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.collective import evaluate_collective
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rail_results import faulty
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.report import collective_report, text
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the result.

        Raises:
            AnsibleActionFail: an option is invalid.
        """
        if not 0 < options["slow_share"] < 1:
            raise AnsibleActionFail(f"slow_share must be between 0 and 1, not {options['slow_share']}")
        plan = options["plan"]
        answer = registered(options["progress"], variables).get(plan["master"]) or {}
        job = answer.get("job") or {"state": "not known", "reason": str(answer.get("msg") or "")}
        nodes = {node["name"]: node["address"] for node in plan["nodes"]}
        evaluated = evaluate_collective(nodes, job, options["slow_share"])
        return {
            "collective": evaluated,
            "faulty": faulty(evaluated["verdicts"]),
            "msg": text(collective_report(evaluated)),
        }
