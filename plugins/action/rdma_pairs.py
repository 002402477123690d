# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedule the rounds of RDMA measurements, and evaluate them; see plugins/modules/rdma_pairs.py."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import parse_nodes
from ansible_collections.rdm.provision.plugins.module_utils.network.rails import on_rail
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import rdma
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_evaluation import Bounds
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rail_results import faulty, of_rails
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rdma_rounds import (
    measuring,
    parts,
    sample_of,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.report import rdma_report, text
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the rounds, or the result.

        Raises:
            AnsibleActionFail: an option is invalid.
        """
        for name, least in (("seconds", 1), ("most_rounds", 1), ("timeout", 0.1)):
            if options[name] < least:
                raise AnsibleActionFail(f"{name} must be at least {least}, not {options[name]}")
        if not 0 < options["slow_share"] < 1:
            raise AnsibleActionFail(f"slow_share must be between 0 and 1, not {options['slow_share']}")
        try:
            addresses = {
                name: on_rail(address, options["rails"], options["rail"])
                for name, address in parse_nodes(options["nodes"]).items()
            }
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        gathered = {
            host: {**answer, "reason": str(answer.get("msg"))} if answer.get("failed") else answer
            for host, answer in _of_rail(options["gathered"], options["rail"], variables).items()
            if not answer.get("unreachable")
        }
        ready = measuring(addresses, gathered)
        if options["stage"] == "schedule":
            forks = max(1, int(variables["ansible_forks"]))
            found = parts(
                {name: addresses[name] for name in ready}, gathered, options, forks, secrets.token_hex(8)
            )
            first = ready[0] if found else ""
            limit = found[first]["limit"] if found else 0.0
            rounds = f"{len(ready)} nodes, {len(found[first]['rounds'])} rounds" if found else ""
            return {"parts": found, "first": first, "limit": limit, "msg": rounds or "nothing to measure"}
        results = {
            host: {**answer, "reason": answer.get("reason") or str(answer.get("msg") or "it was not queried")}
            if answer.get("failed") or answer.get("unreachable")
            else answer
            for host, answer in _of_rail(options["results"], options["rail"], variables).items()
            if host in ready and not answer.get("skipped")
        }
        evaluated = dict(options["others"])
        evaluated[options["rail"]] = rdma.as_dict(
            rdma.evaluate_rdma(
                [name for name in addresses if name in gathered],
                gathered,
                results,
                sample_of(len(ready), options["most_rounds"], options["above"]),
                Bounds(share=options["slow_share"]),
            )
        )
        found = of_rails(evaluated)
        return {"rdma": found, "faulty": faulty(found["verdicts"]), "msg": text(rdma_report(found))}


def _of_rail(name: str, rail: str, variables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the hosts' results for a rail; an unreachable host may still have that of an earlier rail.

    A failed result has no rail; it is kept, since it says why its host is not measured.
    """
    found = registered(name, variables)
    return {host: answer for host, answer in found.items() if answer.get("rail", rail) == rail}
