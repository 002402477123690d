# SPDX-License-Identifier: GPL-3.0-or-later
"""Check what the nodes report against the plan: every problem of every node at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.local_path import HOST_NAME
from ansible_collections.rdm.provision.plugins.module_utils.constants import RUNTIME_CONTAINER, RUNTIME_HOST
from ansible_collections.rdm.provision.plugins.module_utils.container.spec import container_spec
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.collision import (
    RAIL_SUBNETS,
    collisions,
    pool_warnings,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import fleet as fleet_checks
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import sriov as sriov_checks
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.archive_files import archive_files
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.devices import rdma_interfaces
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.existing import (
    addresses_of,
    config_dir_problems,
    container_seen,
    ended_by_plan,
    lock_problem,
    network_differences,
    network_present,
    origin_problems,
    wire_problems,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.node import (
    check_engine,
    check_host,
    check_node,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.running_jobs import ended_jobs
from ansible_collections.rdm.provision.plugins.plugin_utils.desired import vf_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.cluster_plan import ClusterPlan
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import default_directory
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import Attachment, DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
    dry_run,
    sentences,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.cluster_variables import (
    Inventory,
)


class CheckedNode(NamedTuple):
    """What a node's observed state adds to its part of the plan, in what the action `plan` returns.

    Attributes:
        config_dir: the directory for the cluster's files.
        container: the devices, groups, device_requests, ulimits and capabilities of the training container,
            as options of plugins/modules/container.py.
        network_present: whether a Docker network of the container network's name exists.
        network_differences: how it differs from the plan, in sentences.
        shells: which shells are installed.
        seen: name, state and image of the container before the run; empty for none.
        vfs_ending: how many VFs are in use by containers that end before the VFs are configured, by the
            interface of the PF.
        rails: the further rails; parent, network, subnet, gateway, my_ip and options of each.
    """

    config_dir: str
    container: Mapping[str, Any]
    network_present: bool
    network_differences: Sequence[str]
    shells: Mapping[str, bool]
    seen: Mapping[str, str]
    vfs_ending: Mapping[str, int]
    rails: Sequence[Mapping[str, Any]] = ()

    def plain(self) -> dict[str, Any]:
        """Return it as the action returns it, without what the node does not have."""
        return {name: value for name, value in self._asdict().items() if name != "rails" or value}


class CheckedNodes(NamedTuple):
    """What the nodes' observed state adds to the plan.

    Attributes:
        nodes: node name -> its part; only nodes with facts.
        warnings: sentences about problems that do not stop the run.
    """

    nodes: dict[str, CheckedNode]
    warnings: list[str]


def plan_nodes(
    plan: ClusterPlan,
    wants: Mapping[str, DesiredState],
    facts: Mapping[str, ObservedState],
    changes: bool = True,
    failed: Mapping[str, str] | None = None,
) -> CheckedNodes:
    """Check the plan against what the nodes report, and decide what their containers get.

    Args:
        plan: the plan from the inventory.
        wants: the desired state of each node that has facts.
        facts: node name -> what `node_facts` found there.
        changes: whether the nodes are changed afterwards; if not, running jobs and locks are no problem.
        failed: node name -> why gathering failed on a node that was reached. The others go on without an
            unreachable node, which may be dead; a node that reports an error stops the run.

    Raises:
        PreconditionFailed: with every problem of every node.
    """
    bare = plan.inventory.runtime == RUNTIME_HOST
    problems = _taken(plan, wants, facts, bare)
    problems += [
        Problem(
            node, "", f"could not be queried: {why}", f"repair it, or leave it out with --limit '!{node}'"
        )
        for node, why in (failed or {}).items()
    ]
    running = {} if bare else {node: ended_by_plan(wants[node], found) for node, found in facts.items()}
    ended = ended_jobs(running)
    if changes:
        problems += ended
    locked = [lock_problem(node, found["lock"]) for node, found in facts.items() if found["lock"]]
    if changes:
        problems += locked
    warnings: list[Problem] = []
    nodes: dict[str, CheckedNode] = {}
    holders = {address: node for node, address in plan.addresses.nodes.items()}
    ours = addresses_of(plan.inventory.cluster, facts.values())
    for node, found in facts.items():
        want = wants[node]._replace(others=holders)
        findings = (check_host if bare else check_node)(want, found)
        problems += findings.problems
        config_dir = _config_dir(plan.inventory, node, found)
        problems += config_dir_problems(want, config_dir, found)
        problems += origin_problems(want, config_dir, found)
        problems += wire_problems(want, found, ours)
        warnings += findings.warnings
        nodes[node] = _checked(want, found, config_dir)
    problems += archive_files(wants, facts)
    warnings += fleet_checks.differences(facts)
    with_network = {node for node, planned in nodes.items() if planned.network_present}
    if not bare:
        warnings += pool_warnings(plan.addresses.subnet, facts, with_network)
    if problems:
        order = {node: rank for rank, node in enumerate(plan.inventory.nodes)}
        raise PreconditionFailed(sorted(problems, key=lambda problem: order.get(problem.node or "", -1)))
    return CheckedNodes(nodes, sentences(warnings) + dry_run([*locked, *ended]))


def _taken(
    plan: ClusterPlan, wants: Mapping[str, DesiredState], facts: Mapping[str, ObservedState], bare: bool
) -> list[Problem]:
    """Return the collisions of the planned subnets and VFs with those on the nodes."""
    # A bare host has no container network: its fabric address is its own.
    problems = (
        []
        if bare
        else collisions(
            plan.addresses.subnet,
            facts,
            _names(wants, 0),
            plan.inventory.cluster,
            plan.inventory.ssh_addresses.values(),
        )
    )
    problems += vf_plan.taken(plan.addresses, plan.vfs, facts)
    for index, subnet in enumerate(plan.rails, start=1):
        problems += collisions(
            subnet,
            facts,
            _names(wants, index),
            plan.inventory.cluster,
            plan.inventory.ssh_addresses.values(),
            RAIL_SUBNETS,
        )
    return problems


def _checked(want: DesiredState, found: ObservedState, config_dir: str) -> CheckedNode:
    """Return what a node's facts add to its plan."""
    spec = container_spec(
        found,
        want.accelerator,
        *rdma_interfaces(want),
        rdma=not want.vf_devices,
    )
    return CheckedNode(
        config_dir=config_dir,
        container=spec._asdict(),
        network_present=network_present(want, found),
        network_differences=network_differences(want, found),
        shells=dict(found["shells"]),
        seen=container_seen(want, found),
        vfs_ending=sriov_checks.ending(want, found),
        rails=[_rail(rail) for rail in want.attachments[1:]] or (),
    )


def _rail(rail: Attachment) -> dict[str, Any]:
    """Return a node's rail as the action returns it."""
    named = rail.network._asdict()
    return {"network": named.pop("name"), **named, "parent": rail.interface, "my_ip": rail.my_ip}


def _names(wants: Mapping[str, DesiredState], index: int) -> dict[str, str]:
    """Return the name of each node's network on the rail `index`."""
    found = {node: want.attachments[index : index + 1] for node, want in wants.items()}
    return {node: one.network.name for node, attached in found.items() for one in attached}


def problems_of_nodes(
    plan: ClusterPlan,
    found: Sequence[Problem],
    wants: Mapping[str, DesiredState],
    facts: Mapping[str, ObservedState],
) -> list[Problem]:
    """Return the problems of the nodes, after the inventory was refused.

    Args:
        plan: the plan from the inventory, as far as that is valid.
        found: the inventory's problems. Of a node that has one, only the engine is checked; of all nodes, if
            a problem concerns the whole cluster.
        wants: the desired state of each node that has facts.
        facts: node name -> what `node_facts` found there.
    """
    doubtful = {problem.node for problem in found}
    clear = {node: one for node, one in facts.items() if None not in doubtful and node not in doubtful}
    try:
        plan_nodes(plan, {node: wants[node] for node in clear}, clear, changes=False)
    except PreconditionFailed as refused:
        problems = refused.problems
    else:
        problems = []
    return [
        *problems,
        *(
            problem
            for node in facts
            if node not in clear and plan.inventory.runtime == RUNTIME_CONTAINER
            for problem in check_engine(wants[node], facts[node])
        ),
    ]


def _config_dir(inventory: Inventory, node: str, facts: ObservedState) -> str:
    """Return the directory on the node for the cluster's files."""
    mine = inventory.nodes[node]
    if mine.config_dir:
        return mine.config_dir
    home = facts["user"]["home"].rstrip("/")
    return default_directory(mine.become).replace("~", home, 1).replace(HOST_NAME, facts["hostname"])
