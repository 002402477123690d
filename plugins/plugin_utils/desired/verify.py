# SPDX-License-Identifier: GPL-3.0-or-later
"""How the role verify measures from a node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.sample import lines_of_peers, nodes_of
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import NEW_NAMES

_PROBE = {
    "container": ("verify_container", "container_name"),
    "deadline": ("verify_deadline",),
    "timeout": ("verify_timeout",),
    "tries": ("verify_tries",),
    "ssh": ("verify_ssh", "container_sshd"),
    "ssh_port": ("verify_ssh_port", "container_ssh_port"),
    "ssh_peers": ("verify_ssh_peers",),
}
"""Options of `fabric_probe` that are the same on all nodes -> their variables; the first set one counts."""
_RESULT = {"slow_factor": "verify_slow_factor", "slow_floor_us": "verify_slow_floor_us"}
"""Options of `fabric_result` -> their variables."""
_PAIRS = {
    "most_rounds": "verify_rdma_rounds",
    "above": "verify_rdma_sample_above",
    "seconds": "verify_rdma_seconds",
    "timeout": "verify_rdma_timeout",
    "slow_share": "verify_rdma_slow_share",
}
"""Options of `rdma_pairs` -> their variables."""
_ENGINE_S = 60.0
"""Seconds that an engine may take to start the measurement, and the node to answer."""
_RDMA_STEP_S = 5
"""Seconds between two queries of the progress."""
_MORE_TRIES = 12


class DesiredVerify(NamedTuple):
    """How the fabric is measured and evaluated.

    Attributes:
        state: `present`, or `absent` to measure nothing.
        nodes: the whole cluster, one line `node MY_IP` each.
        rails: name -> subnet of each rail, if there are several.
        probe: the options of `fabric_probe` that are the same on all nodes.
        sample: the options of `lines_of_peers`.
        depends_on: the variables that these fields were made from, with their former names.
        cluster: the cluster's name.
        result: the options of `fabric_result` that the user sets.
        pairs: those of `rdma_pairs`.
        collective_slow_share: that of `collective_result`.
    """

    state: str
    nodes: str
    rails: dict[str, str]
    probe: dict[str, Any]
    sample: dict[str, Any]
    depends_on: list[str]
    cluster: str
    result: dict[str, Any]
    pairs: dict[str, Any]
    collective_slow_share: float


def desired_verify(variables: NodeVariables, entry: PlanEntry) -> DesiredVerify:
    """Return how the fabric is measured and evaluated."""
    planned = zip(variables.texts("container_rails"), [entry.subnet, *entry.rails], strict=False)
    rails = variables.value("verify_rails") or (dict(planned) if entry.rails else {})
    state, nodes = variables.text("verify_state"), variables.text("verify_nodes") or entry.address_map
    probe = {option: _first(variables, names) for option, names in _PROBE.items()}
    sample = {
        "peers": variables.value("verify_sample_peers"),
        "above": variables.value("verify_sample_above"),
        "all_pairs": variables.true("verify_all_pairs"),
    }
    # What is read below is not for the measurement, and may differ from node to node.
    depends_on = variables.names_read
    return DesiredVerify(
        state=state,
        nodes=nodes,
        rails=rails,
        probe={**probe, "rails": rails},
        sample=sample,
        depends_on=[*depends_on, *(old for old, new in NEW_NAMES.items() if new in depends_on)],
        cluster=variables.text("rdm_cluster"),
        result={option: variables.value(name) for option, name in _RESULT.items()},
        pairs={option: variables.value(name) for option, name in _PAIRS.items()},
        collective_slow_share=variables.value("verify_collective_slow_share"),
    )


def _first(variables: NodeVariables, names: Iterable[str]) -> Any:
    """Return the value of the first of these variables that has one."""
    return next((value for name in names if (value := variables.value(name)) not in (None, "")), None)


def probe_arguments(part: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the options of `fabric_probe` that differ from node to node, by node.

    Args:
        part: the role's part with its steps.

    Raises:
        ValueError: a node is to measure no other, or a line of the nodes is invalid.
    """
    return {
        node: {"node": node, "nodes": lines_of_peers(part["nodes"], node, part["run"], **part["sample"])}
        for node in part["run"]
    }


def verify_steps(
    part: DesiredVerify, variables: NodeVariables, entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return what the role's tasks read in addition to the part.

    `run` are the nodes of this run; a play may have fewer. `peers` are the lines of the node and of the nodes
    that it measures. `connections`, `interpreters` and `timeout` are options of `run_on_all`, and `rest` the
    nodes that it did not measure. `work` is what a run would do before it measures; empty outside check mode.
    """
    run = variables.texts("__verify_hosts") or list(observed.variables["ansible_play_hosts_all"])
    above = variables.number("preflight_threaded_above")
    threaded = part.state == "present" and len(observed.variables["ansible_play_hosts"]) > above
    plays = observed.result("__verify_probe_all").get("plays") or {}
    return {
        "run": run,
        "peers": lines_of_peers(part.nodes, entry.node, run, **part.sample),
        "connections": variables.texts("preflight_threaded_connections") if threaded else [],
        "interpreters": observed.result("preflight_facts_all").get("interpreters") or {},
        "timeout": part.probe["deadline"] * max(1, len(part.rails)) + _ENGINE_S,
        "rest": list(dict.fromkeys([*plays.get("lost", ()), *plays.get("others", ())])),
        "work": (observed.result("preflight_work").get("why") or {}) if observed.check_mode else {},
        "rdma": _rdma(part, variables, entry, observed),
        "collective": _collective(variables, run),
    }


def _rdma(
    part: DesiredVerify, variables: NodeVariables, entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return the node's `address`, its `part` of the rounds, and the results on rails before this one.

    `wait` is how many seconds a query of its progress lasts: all nodes measure the same round, so the first
    one reports the progress of all.
    """
    plan = observed.result("__verify_rdma_plan")
    limit = plan.get("limit") or 0.0
    before = observed.result("verify_rdma_result") if variables.number("__verify_rail_index") else {}
    return {
        "address": nodes_of(part.nodes).get(entry.node, ""),
        "part": (plan.get("parts") or {}).get(entry.node, {}),
        "wait": _RDMA_STEP_S if entry.node == plan.get("first") else limit,
        "tries": int(limit / _RDMA_STEP_S) + _MORE_TRIES,
        "before": (before.get("rdma") or {}).get("rails") or {},
    }


def _collective(variables: NodeVariables, run: list[str]) -> dict[str, Any]:
    """Return the `overrides` of the job that runs the all-reduce, and why it is refused."""
    size = variables.text("verify_collective_max_size")
    problem = ""
    if len(run) < 2:
        problem = f"an all-reduce takes at least two nodes, and this run has only {run[0]}"
    elif not re.fullmatch("[0-9]+[MG]", size):
        problem = f"verify_collective_max_size {size} is no size: give one from 1M up, such as 256M or 1G"
    seconds = variables.text("verify_collective_seconds")
    program = ["-m", "rdm_trainer.tools.all_reduce", "--max-size", size, "--time-limit", seconds]
    return {
        "overrides": [
            f"launcher.kind={variables.text('verify_collective_launcher')}",
            f"launcher.program={json.dumps(program)}",
        ],
        "problem": problem,
    }
