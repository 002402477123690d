# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the networks, containers and files that a node already has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NO_ENGINE, Container, Network
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    LABEL_CLUSTER,
    PLAN_FILE,
    STATE_DIR,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import NEXT, OLD, is_ours
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.collision import subnets_of
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.rails import network_of
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.network_plugin import installed_plugin
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import Leader
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import DockerNetwork
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import Attachment, DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem


def network_differences(
    want: DesiredState, facts: ObservedState, rail: Attachment | None = None
) -> list[str]:
    """Return how the existing network of our name differs from the plan; empty if it does not.

    With `rail`, here and below, that rail's network is checked instead of the first.
    """
    planned = (rail or want.attachments[0]).network
    network = _existing(planned, facts)
    if not network:
        return []
    options = network["options"]
    has = [("driver", network["driver"], want.network_driver)]
    has.append(("subnet", names(map(str, subnets_of(network))) or "none", planned.subnet))
    has.append(("plugin", installed_plugin(facts, want.cluster) or want.plugin, want.plugin))
    has.append(("gateway", names(map(_gateway, network["subnets"])) or "none", planned.gateway))
    if network["driver"] == want.network_driver:
        has += [(name, options.get(name) or "none", value) for name, value in planned.options.items()]
    differences = [f"{what} is {is_now}, not {wanted}" for what, is_now, wanted in has if is_now != wanted]
    if not is_ours(network["labels"], want.cluster):
        differences.append("it does not carry this cluster's label")
    return differences


def network_present(want: DesiredState, facts: ObservedState) -> bool:
    """Return whether a network of the cluster's network name exists on the node."""
    return bool(_existing(want.attachments[0].network, facts))


def container_seen(want: DesiredState, facts: ObservedState) -> dict[str, str]:
    """Return name, state and image of the cluster's container on the node; empty if there is none."""
    ours = [one for one in _containers(facts) if is_ours(one["labels"], want.cluster, "container")]
    # A killed run may have left further containers.
    ours.sort(key=lambda one: one["name"] != want.container.name)
    return {key: str(ours[0][key]) for key in ("name", "state", "image")} if ours else {}


def ended_by_plan(want: DesiredState, facts: ObservedState) -> list[str]:
    """Return the jobs that would end because their container gets another address or a recreated network."""
    replaced = want.run.replace_network and any(
        network_differences(want, facts, one) for one in want.attachments
    )
    first = want.attachments[0]
    return sorted(
        job
        for container in _containers(facts)
        if want.run.protect_jobs and is_ours(container["labels"], want.cluster)
        if replaced or container["networks"].get(first.network.name, first.my_ip) != first.my_ip
        for job in container["jobs"]
    )


def config_dir_problems(want: DesiredState, config_dir: str, facts: ObservedState) -> list[Problem]:
    """Return a problem if another cluster's files are in the directory."""
    owner = facts["config_owner"] or want.cluster
    if owner == want.cluster:
        return []
    hint = f"set rdm_config_dir to another directory, for example {config_dir}-{want.cluster}"
    return [Problem(want.node, config_dir, f"belongs to the cluster {owner}", hint)]


def origin_problems(want: DesiredState, config_dir: str, facts: ObservedState) -> list[Problem]:
    """Return a problem if the cluster of our name on the node was made from another inventory.

    A node that was down while the keys were replaced is accepted: the plan records its address and the old
    keys.
    """
    mine, theirs = want.origin, facts["origin"]
    if mine is None or facts["config_owner"] != want.cluster:
        return []
    authority, my_ip = theirs.get("authority", ""), theirs.get("my_ip", "")
    known = authority in mine.replaced and mine.before == my_ip
    what = f"the cluster {want.cluster} in {config_dir}"
    if authority and authority != mine.authority and not mine.new_keys and not known:
        return [authority_problem(want.node, what, authority, mine.authority)]
    if my_ip and not mine.planned and my_ip != want.my_ip:
        lacks = f"and this inventory, which has no {PLAN_FILE}, would give it {want.my_ip}"
        reason = f"gave this node {my_ip}, {lacks}"
        hint = f"copy {PLAN_FILE} from where the cluster was made, or set my_ip: {my_ip} for this node"
        return [Problem(want.node, what, reason, hint)]
    return []


def authority_problem(node: str, what: str, theirs: str, ours: str) -> Problem:
    """Return the problem that a node has keys of another inventory.

    Args:
        node: the node.
        what: the cluster, and where its files are.
        theirs: fingerprint of the authority on the node.
        ours: fingerprint of this inventory's authority; empty if it has none yet.
    """
    its = f"its ssh authority is {theirs}, and this one's is {ours or 'yet to be made'}"
    hint = (
        f"work with that one, whose {PLAN_FILE} and {STATE_DIR}/ssh may be copied here, or, if both are "
        "lost, set preflight_new_ssh_keys=true for one run"
    )
    return Problem(node, what, f"was made from another inventory: {its}", hint)


def wire_problems(want: DesiredState, facts: ObservedState, ours: Collection[str]) -> list[Problem]:
    """Return a problem for each address of the node that another host on the link uses.

    Args:
        want: the desired state of the node.
        facts: what was found there.
        ours: the addresses that this cluster's containers have now, which may be about to change.
    """
    hint = (
        "set rdm_subnet to a subnet of this cluster's own (each cluster on a fabric needs one), or give the "
        "node another my_ip"
    )
    return [
        Problem(want.node, one["address"], f"is used already on {one['interface']} by {one['mac']}", hint)
        for one in facts["in_use"]
        if one["address"] not in ours
    ]


def addresses_of(cluster: str, facts: Iterable[ObservedState]) -> set[str]:
    """Return the addresses that a cluster's containers have on these nodes."""
    return {
        address
        for found in facts
        for container in _containers(found)
        if is_ours(container["labels"], cluster)
        for address in container["networks"].values()
    }


def lock_problem(node: str, holder: Mapping[str, Any]) -> Problem:
    """Return the problem that another run holds a node's lock."""
    leader = Leader.read(holder["leader"])
    if leader is None:
        reason = "is being changed by a run of another version of rdm-provision"
    else:
        since = datetime.fromtimestamp(leader.since, UTC).strftime(" since %Y-%m-%d %H:%M:%S UTC")
        reason = f"is being changed by {leader}{since if leader.since else ''}"
    return Problem(node, "", reason, "wait for that run to end, or stop it where it was started")


def network(
    want: DesiredState, facts: ObservedState, findings: Findings, rail: Attachment | None = None
) -> None:
    """Report a network of our name that is not ours, or that differs from the plan and stays."""
    differences = network_differences(want, facts, rail)
    if not differences:
        return
    network = _existing((rail or want.attachments[0]).network, facts)
    value = f"the Docker network {network['name']}"
    foreign = _foreign_containers(want, facts, network)
    other = network["labels"].get(LABEL_CLUSTER)
    if other and other != want.cluster:
        reason, hint = f"belongs to the cluster {other}", "choose another network_name"
    elif foreign:
        reason = f"has other settings ({'; '.join(differences)}) and carries containers that are not ours"
        hint = f"remove {names(foreign)} from it, or choose another network_name"
    elif not want.run.replace_network:
        reason = f"has other settings: {'; '.join(differences)}"
        hint = "set network_replace: true to recreate it, or choose another network_name"
    else:
        return
    findings.refuse(want.node, value, reason, hint)


def old_names(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Refuse new names for what this cluster already has on the node: the old ones would be left behind."""
    networks = (facts["docker"] or NO_ENGINE)["networks"]
    attached = [one.network.name for one in want.attachments]
    named = (
        ("container", "container_name", want.container.name, _containers(facts)),
        ("network", "network_name", want.attachments[0].network.name, networks),
    )
    for kind, variable, name, existing in named:
        for one in existing:
            # The name of a container without a name is its short ID.
            nameless = one["name"] == one["id"][:12]
            left_behind = kind == "container" and (nameless or one["name"] in (name + NEXT, name + OLD))
            if one["name"] == name or left_behind or not is_ours(one["labels"], want.cluster, kind):
                continue
            index = one["name"].rpartition("-")[2]
            if kind == "network" and index.isdigit() and one["name"] == network_of(name, int(index)):
                if one["name"] not in attached:
                    value = f"the Docker network {one['name']}"
                    reason = "is of a rail that container_rails no longer has"
                    hint = "list it again, or take the cluster down first (rdm-provision down)"
                    findings.refuse(want.node, value, reason, hint)
            else:
                reason = f"is not what this cluster has on the node, a {kind} named {one['name']}"
                # A network cannot be renamed.
                back = f"rename it back (docker rename {one['name']} {name}), " if kind == "container" else ""
                hint = f"set {variable}: {one['name']}"
                hint = f"{back}{hint}, or take the cluster down first (rdm-provision down)"
                findings.refuse(want.node, f"{variable} {name}", reason, hint)


def parent_in_use(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Refuse a second macvlan or ipvlan network on an interface, as the engine would later."""
    if want.network_driver not in ("macvlan", "ipvlan"):
        return
    first = want.attachments[0]
    for network in (facts["docker"] or NO_ENGINE)["networks"]:
        same = network["options"].get("parent") == first.network.options.get("parent")
        if network["driver"] not in ("macvlan", "ipvlan") or not same:
            continue
        if network["name"] != first.network.name and not is_ours(network["labels"], want.cluster):
            findings.refuse(
                want.node,
                f"network_parent {first.interface}",
                f"carries the Docker network {network['name']} already, and the engine allows one",
                "choose another interface (or a VLAN of it), or remove that network",
            )


def container_name(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report a container of our name that is not this cluster's."""
    for container in _containers(facts):
        if container["name"] == want.container.name and not is_ours(container["labels"], want.cluster):
            findings.refuse(
                want.node,
                f"a container named {want.container.name}",
                "exists already and is not this cluster's",
                "remove or rename it, or choose another container_name",
            )


def address(
    want: DesiredState, facts: ObservedState, findings: Findings, rail: Attachment | None = None
) -> None:
    """Report a container with the node's address that is not this cluster's."""
    planned = rail or want.attachments[0]
    for container in _containers(facts):
        at = container["networks"].get(planned.network.name)
        if at == planned.my_ip and not is_ours(container["labels"], want.cluster):
            findings.refuse(
                want.node,
                planned.my_ip,
                f"is used by the container {container['name']}, which is not this cluster's",
                "remove that container from the network, or give the node another my_ip",
            )


def guests(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report others' containers on our network: the engine may give them addresses of other nodes.

    The engine could reserve the plan's addresses only when it creates the network, so each new node would
    mean recreating the network everywhere.
    """
    name = want.attachments[0].network.name
    network = _existing(want.attachments[0].network, facts)
    ours = network and is_ours(network["labels"], want.cluster)
    guests = _foreign_containers(want, facts, network) if ours else []
    at = {one["name"]: one["networks"].get(name, "") for one in _containers(facts)}
    for guest in guests:
        address = at.get(guest, "")
        owner = want.others.get(address, "")
        if owner and address != want.my_ip:
            # Both would answer, and verify would name the planned node as faulty.
            reason = f"is used by the container {guest}, which is not this cluster's"
            hint = "remove that container from the network"
            findings.refuse(want.node, f"the address {address} of {owner}", reason, hint)
        elif not owner:
            findings.warn(
                want.node,
                f"The container {guest}, which is not this cluster's, is on the network {name}"
                f"{f' at {address}' if address else ''}: the engine may give it the address of another node.",
            )


def former_cluster(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn of jobs in another cluster's container; it may be this cluster under its former name."""
    for one in _containers(facts):
        theirs = one["labels"].get(LABEL_CLUSTER, "")
        if theirs and theirs != want.cluster and one["jobs"]:
            many = len(one["jobs"]) > 1
            jobs = f"jobs {names(one['jobs'])} run" if many else f"job {one['jobs'][0]} runs"
            findings.warn(
                want.node,
                f"The {jobs} in the container {one['name']} of the cluster {theirs}, next to which this "
                "cluster's is started: if that is the former name of this one, stop what runs there first.",
            )


def _existing(planned: DockerNetwork, facts: ObservedState) -> Network:
    networks = (facts["docker"] or NO_ENGINE)["networks"]
    return next((one for one in networks if one["name"] == planned.name), Network())


def _containers(facts: ObservedState) -> list[Container]:
    return (facts["docker"] or NO_ENGINE)["containers"]


def _foreign_containers(want: DesiredState, facts: ObservedState, network: Network) -> list[str]:
    """Return the containers on the network, even stopped ones, that are not the cluster's."""
    labels = {one["name"]: one["labels"] for one in _containers(facts)}
    attached = {one["name"] for one in _containers(facts) if network["name"] in one["networks"]}
    attached.update(network["containers"])
    return sorted(name for name in attached if not is_ours(labels.get(name), want.cluster))


def _gateway(subnet: Mapping[str, Any]) -> str:
    """Return a subnet's gateway; the engine omits it if it chose the first usable address itself."""
    if subnet["gateway"]:
        return str(subnet["gateway"]).partition("/")[0]
    return str(next(ip_network(subnet["subnet"]).hosts()))
