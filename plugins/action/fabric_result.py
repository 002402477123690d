# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate the fabric from the results of all hosts; see plugins/modules/fabric_result.py."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import parse_nodes
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import fabric
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.evaluation import evaluate
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rail_results import faulty, of_rails
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.report import fabric_report, text
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered

_RESULTS = {"sriov": ("__sriov_vfs", "__sriov_installed"), "container": ("__container_run",)}
"""The roles' registered results on which a node's fabric connection depends; a new network means a new
container."""


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the result.

        Raises:
            AnsibleActionFail: the list of nodes cannot be read.
        """
        try:
            names = list(parse_nodes(options["nodes"]))
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        rails: dict[str, dict[str, fabric.Measurement]] = {
            name: {} for name in (options["rails"] if len(options["rails"]) > 1 else [""])
        }
        waiting = []
        for host, answer in registered(options["measurements"], variables, options["hosts"]).items():
            if answer.get("unreachable"):
                continue
            measured = fabric.measurements(answer, len(rails))
            if self._task.check_mode and measured[0].container_state not in ("running", "unknown"):
                waiting.append(host)  # a real run would start it first
                continue
            for rail, there in zip(rails.values(), measured, strict=False):
                rail[host] = there
        evaluated = self._evaluated(names, rails, options)
        found = of_rails(evaluated)
        results = {
            role: [registered(task, variables, list(options["work"])) for task in tasks]
            for role, tasks in _RESULTS.items()
        }
        changing = fabric.about_to_change(options["work"], results)
        # A node that is about to change may disturb others, which are not faulty: the change may repair it.
        stays = {name: fabric.lasting(rail, changing) for name, rail in rails.items()}
        lasting = of_rails(self._evaluated(names, stays, options)) if changing else found
        named = {node: why for node, why in faulty(lasting["verdicts"]).items() if node not in changing}
        return {"fabric": found, "faulty": named, "msg": text(fabric_report(found, waiting))}

    @staticmethod
    def _evaluated(
        names: list[str], rails: dict[str, dict[str, fabric.Measurement]], options: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Return the result of each rail."""
        return {
            name: fabric.as_dict(
                evaluate(names, measurements, options["slow_factor"], options["slow_floor_us"])
            )
            for name, measurements in rails.items()
        }
