"""What runs on a node, compared with the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rdm_provision.constants import LABEL_CLUSTER, LABEL_ROLE
from rdm_provision.problem import Problem


@dataclass(frozen=True, slots=True)
class NodeState:
    """What runs on a node, as ``status`` found it.

    Attributes:
        node: its name.
        reachable: its facts could be read.
        my_ip: its planned address.
        container_ip: the address its container has on the container network.
        engine: version of Docker Engine.
        container: name and state of the training container, as ``rdm (running)``.
        image: the image the container was made from.
        network: name and driver of the container network, as ``ibnet (sriov)``.
        plugin: state of the SR-IOV plugin, of its container or its unit; empty if there is none.
        accelerator: ``rocm``, ``cuda`` or ``cpu``, as found.
        remarks: what is not as planned, a line each.
    """

    node: str
    reachable: bool
    my_ip: str
    container_ip: str = ""
    engine: str = ""
    container: str = ""
    image: str = ""
    network: str = ""
    plugin: str = ""
    accelerator: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether everything is there and as planned."""
        return self.reachable and not self.remarks


def node_state(
    name: str,
    plan: Mapping[str, Any],
    why: str,
    facts: Mapping[str, Any] | None,
    problems: Iterable[Problem] = (),
) -> NodeState:
    """Compare a node's facts with the plan; a new node has no address until the plan is saved.

    Args:
        name: of the node.
        plan: what the action ``plan`` returned.
        why: why the node was not checked; empty if it was.
        facts: the node's facts; None if there are none.
        problems: for which ``up`` would be refused.
    """
    planned_node = plan["nodes"].get(name) or {}
    planned = "" if planned_node.get("note") == "new" else str(planned_node.get("my_ip", ""))
    if facts is None:
        return NodeState(name, reachable=False, my_ip=planned, remarks=(why or "not queried",))
    accelerator = str(facts.get("accelerator", ""))
    docker = facts.get("docker")
    if docker is None:
        remark = str(facts.get("docker_error") or "no Docker Engine")
        return NodeState(name, True, planned, accelerator=accelerator, remarks=(remark,))
    cluster = str(plan["cluster"])
    container = _ours(docker.get("containers", ()), cluster, "container")
    network = _ours(docker.get("networks", ()), cluster, "network")
    plugin = _plugin(facts, cluster)
    found = str(container["networks"].get(network["name"], "")) if container and network else ""
    return NodeState(
        name,
        reachable=True,
        my_ip=planned,
        container_ip=found,
        engine=("Podman " if docker.get("engine") == "podman" else "") + str(docker.get("version", "")),
        container=f"{container['name']} ({container['state']})" if container else "",
        image=str(container.get("image", "")) if container else "",
        network=f"{network['name']} ({network['driver']})" if network else "",
        plugin=plugin,
        accelerator=accelerator,
        remarks=(
            *_remarks(planned, found, container, network, plugin),
            *(problem.sentence for problem in problems if problem.node in (None, name)),
        ),
    )


def _ours(things: Iterable[Mapping[str, Any]], cluster: str, role: str) -> Mapping[str, Any] | None:
    """Return the container or network with our labels, if there is one.

    A running container is preferred: a killed run may have left others.
    """
    wanted = {LABEL_CLUSTER: cluster, LABEL_ROLE: role}
    ours = [thing for thing in things if wanted.items() <= (thing.get("labels") or {}).items()]
    return min(ours, key=lambda thing: thing.get("state") != "running", default=None)


def _plugin(facts: Mapping[str, Any], cluster: str) -> str:
    """Return the state of the cluster's network plugin; empty if there is none."""
    unit = facts.get("network_plugin") or {}
    if unit.get("unit") and unit.get("cluster") == cluster:
        return "running" if unit.get("running") else "stopped"
    container = _ours(facts["docker"].get("containers", ()), cluster, "plugin")
    return str(container["state"]) if container else ""


def _remarks(
    planned: str,
    found: str,
    container: Mapping[str, Any] | None,
    network: Mapping[str, Any] | None,
    plugin: str,
) -> Iterator[str]:
    if not planned:
        yield "no address planned yet"
    if network is None:
        yield "no container network"
    if container is None:
        yield "no training container"
    elif container.get("state") == "paused":
        name = container["name"]
        yield f"the container is paused: rdm-provision up, or docker unpause {name}, lets it go on"
    elif container.get("state") != "running":
        yield f"the container is {container.get('state')}"
    elif network is not None and not found:
        yield f"the container is not on {network['name']}"
    elif found and planned and found != planned:
        yield f"the container has {found} instead of {planned}"
    if plugin not in ("", "running"):
        yield f"the SR-IOV plugin is {plugin}"
    elif not plugin and network is not None and network.get("driver") == "sriov":
        yield "the SR-IOV plugin is missing"
