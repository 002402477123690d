# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab in this machine's Docker Engine: make, inspect, break, repair and remove it."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ansible_collections.rdm.provision.rdm_lab import spec
from ansible_collections.rdm.provision.rdm_lab.client import exec_run
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.vm.machine import BOOT_TIMEOUT_S, is_machine
from docker import APIClient
from docker.errors import APIError

PARALLEL = 8
ATTEMPTS = 5
# A busy engine removes a node in minutes.
REMOVAL_TIMEOUT_S = 300.0
EXEC_TIMEOUT_S = 180.0
TIMED_OUT = 124
"""Exit status of timeout(1)."""
START_TIMEOUT_S = 300.0
POLL_S = 0.05
FREEZER = "/sys/fs/cgroup/freezer"
"""The freezer of cgroup v1. With v2, frozen processes can be killed."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class NodeState(NamedTuple):
    """A node's state.

    Attributes:
        name: n1, n2, ...
        address: on the management network.
        state: Docker's word: "running", or such as "exited".
        cable: "plugged", "cut" (the switch's port is down) or "unplugged" (there is none).
        engine: "ready", or why not; empty if the node does not run.
    """

    name: str
    address: str
    state: str
    cable: str
    engine: str


class LabEngine:
    """One lab in the engine."""

    def __init__(self, docker: APIClient, name: str) -> None:
        self.docker = docker
        self.name = spec.checked_name(name)

    # ---- inspect

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return the lab's containers, as the engine lists them, by their name without the lab's."""
        found = self.docker.containers(all=True, filters=self._mine)
        prefix = spec.object_name(self.name, "")
        return {one["Names"][0].lstrip("/")[len(prefix) + 1 :]: one for one in found if one.get("Names")}

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the nodes' containers by node name, in the order of their numbers."""
        found = {
            name: one for name, one in self.containers().items() if spec.NODE_LABEL in (one["Labels"] or {})
        }
        return dict(sorted(found.items(), key=lambda item: int(item[0][1:])))

    def node(self, name: str) -> dict[str, Any]:
        """Return a node's container.

        Raises:
            LabProblem: the lab has no such node.
        """
        nodes = self.nodes()
        if not nodes:
            found = self.docker.containers(all=True, filters={"label": spec.LABEL})
            others = ", ".join(sorted({repr(one["Labels"][spec.LABEL]) for one in found}))
            only = f", only {others}" if others else ""
            raise LabProblem(
                f"there is no lab {self.name!r}{only}: rdm-provision lab up --name {self.name} makes it"
            )
        if name not in nodes:
            raise LabProblem(f"lab {self.name!r} has no node {name!r}: it has {', '.join(nodes)}")
        return nodes[name]

    def network(self) -> dict[str, Any]:
        """Return the management network, or an empty dictionary."""
        found: list[dict[str, Any]] = self.docker.networks(filters=self._mine)
        return found[0] if found else {}

    def subnet(self) -> str:
        """Return the subnet of the management network, or nothing."""
        network = self.network()
        return str(network["IPAM"]["Config"][0]["Subnet"]) if network else ""

    def directory(self) -> str:
        """Return the directory of the inventory that the lab was made with, or nothing."""
        return str((self.network().get("Labels") or {}).get(spec.DIRECTORY_LABEL, ""))

    def ports(self) -> dict[str, bool]:
        """Return the switch's ports that have a cable, and whether they are up."""
        try:
            listed = self._exec("switch", ["ip", "-json", "link", "show", "type", "veth"])
        except APIError:
            return {}  # there is no switch, or it does not run
        return {one["ifname"]: "UP" in one["flags"] for one in json.loads(listed or "[]")}

    def status(self) -> list[NodeState]:
        """Return the state of every node."""
        nodes = self.nodes()
        ports = self.ports() if nodes else {}

        def state(name: str) -> NodeState:
            running = nodes[name]["State"] == "running"
            mine = spec.ports_of(name, ports)
            whole = all(ports[one] for one in mine)
            cable = "unplugged" if not mine or not running else "plugged" if whole else "cut"
            engine = self._unready(name, 0) if running else ""
            return NodeState(
                name,
                address(nodes[name]),
                nodes[name]["State"],
                cable,
                engine or ("ready" if running else ""),
            )

        return parallel(state, nodes)

    # ---- make

    def wanted_network(self, directory: str, check: bool = False) -> str:
        """Make the management network if there is none; return its subnet.

        Raises:
            LabProblem: no subnet is free.
        """
        subnet = self.subnet()
        refused: list[str] = []
        while not subnet:
            routes = Path("/proc/net/route").read_text(encoding="ascii")
            candidate = spec.management_subnet(routes, self.docker.networks(), refused)
            if check:
                return candidate
            try:
                self.docker.create_network(**spec.network_body(self.name, candidate, directory))
                subnet = candidate
            except APIError as error:
                # Another lab was faster, or a range without a route is in use.
                if len(refused) >= ATTEMPTS or "overlap" not in error.explanation:
                    raise
                refused.append(candidate)
        return subnet

    def make_switch(self, image: str, rails: int = 1) -> None:
        """Make and start the switch."""
        self._make("switch", spec.switch_body(self.name, image, rails))

    def make_nodes(self, bodies: Mapping[str, dict[str, Any]]) -> None:
        """Make and start nodes, several at once."""
        if any(
            f":{spec.SHARED_AT}" in bind for body in bodies.values() for bind in body["HostConfig"]["Binds"]
        ):
            self.docker.create_volume(**spec.shared_volume_body(self.name))

        def make(node: str) -> None:
            self.docker.create_volume(**spec.volume_body(self.name, node))
            self._make(node, bodies[node])

        parallel(make, bodies)

    def start_nodes(self, nodes: Iterable[str]) -> None:
        """Start nodes that are off, several at once, without their cables."""
        parallel(self._start, nodes)

    def remove_switch(self) -> None:
        """Remove the switch, and with it every cable."""
        self._remove_container(self._object("switch"))

    def plug(self, nodes: Iterable[str]) -> None:
        """Plug the cables of nodes into the switch, replacing those that are plugged in."""
        cables = []
        for node in nodes:
            pid = self.docker.inspect_container(self._object(node))["State"]["Pid"]
            if not pid:
                raise LabProblem(f"{node} does not run: see docker logs {self._object(node)}")
            cables.append(f"{spec.port(node)}={pid}")
        if cables:
            self._exec("switch", ["rdm-lab", "plug", *cables])

    def wait(self, nodes: Iterable[str], timeout: float) -> None:
        """Wait until nodes have ssh, cable and engine.

        Raises:
            LabProblem: a node does not get ready in time.
        """

        def problem(node: str) -> str:
            missing = self._unready(node, timeout)
            return f"{node} is not ready after {timeout:g} s: {missing}" if missing else ""

        problems = [found for found in parallel(problem, nodes) if found]
        if problems:
            raise LabProblem("; ".join(problems))

    def virtualisation(self, node: str) -> str:
        """Return what runs the instructions of a node that is a virtual machine: "kvm" or "tcg"."""
        return self._exec(node, ["rdm-lab", "accelerator"]).strip()

    # ---- break and repair

    def stop(self, node: str) -> bool:
        """Pull a node's power plug; return whether it ran."""
        found = self.node(node)
        if found["State"] != "running":
            return False
        thaw(found["Id"])
        self.docker.kill(self._object(node))
        self._await_state(node, "exited")
        return True

    def start(self, node: str, timeout: float | None = None) -> bool:
        """Switch a node on, plug its cable in and wait until it is ready; return whether it was off.

        Args:
            node: its name.
            timeout: seconds within which it has to be ready; the default depends on its hardware.
        """
        found = self.node(node)
        off = found["State"] != "running"
        if timeout is None:
            timeout = BOOT_TIMEOUT_S if is_machine(found) else START_TIMEOUT_S
        self._start("switch")
        if off:
            self._start(node)
        if off or spec.port(node) not in self.ports():
            self.plug([node])
        self.wait([node], timeout)
        return bool(off)

    def set_cable(self, node: str, up: bool) -> bool:
        """Cut a running node off the fabric, or repair its cables; return whether that changed something.

        Raises:
            LabProblem: the node does not run, and so has no cable.
        """
        # The kernel removes the cable of a stopped node after a delay.
        runs = self.node(node)["State"] == "running"
        ports = self.ports()
        mine = spec.ports_of(node, ports)
        if not mine or not runs:
            raise LabProblem(
                f"{node} of lab {self.name!r} is not plugged in: run rdm-provision lab start {node} "
                f"--name {self.name}"
            )
        wrong = [port for port in mine if ports[port] != up]
        for port in wrong:
            self._exec("switch", ["ip", "link", "set", port, "up" if up else "down"])
        return bool(wrong)

    # ---- remove

    def remove_nodes(self, nodes: Iterable[str]) -> None:
        """Remove nodes and their volumes."""

        def remove(node: str) -> None:
            self._remove_container(self._object(node))
            self._remove_volume(self._object(node))

        parallel(remove, nodes)

    def leftovers(self) -> list[str]:
        """Return the names of the lab's objects in the engine."""
        volumes = self.docker.volumes(filters=self._mine).get("Volumes") or []
        return [
            *(f"container {name}" for name in self.containers()),
            *(f"volume {one['Name']}" for one in volumes),
            *(f"network {one['Name']}" for one in self.docker.networks(filters=self._mine)),
        ]

    def remove(self) -> None:
        """Remove the lab's objects from the engine.

        Raises:
            LabProblem: an object cannot be removed.
        """
        deadline = time.monotonic() + REMOVAL_TIMEOUT_S
        while True:
            # By label, and repeated until none is found: an interrupted start may still make some.
            found = self.docker.containers(all=True, filters=self._mine)
            parallel(self._remove_container, [one["Id"] for one in found])
            for one in self.docker.volumes(filters=self._mine).get("Volumes") or []:
                self._remove_volume(one["Name"])
            for one in self.docker.networks(filters=self._mine):
                with contextlib.suppress(APIError):
                    self.docker.remove_network(one["Id"])
            left = self.leftovers()
            if not left:
                return
            if time.monotonic() > deadline:
                raise LabProblem(f"lab {self.name!r} could not be removed completely: {', '.join(left)} stay")
            time.sleep(POLL_S)

    # ---- private

    @property
    def _mine(self) -> dict[str, list[str]]:
        return {"label": [f"{spec.LABEL}={self.name}"]}

    def _object(self, part: str) -> str:
        return spec.object_name(self.name, part)

    def _exec(self, part: str, argv: list[str]) -> str:
        limited = ["timeout", "--kill-after=5", f"{EXEC_TIMEOUT_S:g}", *argv]
        done = exec_run(self.docker, self._object(part), limited)
        if done.exit_code:
            words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
            why = words or f"exit status {done.exit_code}"
            if done.exit_code == TIMED_OUT:
                why = f"it did not end within {EXEC_TIMEOUT_S:g} s"
            raise LabProblem(f"{argv[0]} in {self._object(part)} failed: {why}")
        return done.stdout.decode("utf-8", "replace")

    def _unready(self, node: str, timeout: float) -> str:
        """Wait for a node; return what it lacks after the timeout, or nothing."""
        try:
            done = exec_run(self.docker, self._object(node), ["rdm-lab", "wait", f"{timeout:g}"])
        except APIError:
            return f"it has stopped again, see docker logs {self._object(node)}"
        return done.stdout.decode("utf-8", "replace").strip() if done.exit_code else ""

    def _make(self, part: str, body: dict[str, Any]) -> None:
        while True:
            try:
                self.docker.create_container_from_config(body, self._object(part))
                break
            except APIError as error:
                body = without_unknown_capability(body, error)
        self._start(part)

    def _start(self, part: str) -> None:
        self.docker.start(self._object(part))

    # The caller checks again for objects that are being removed or in use.

    def _remove_container(self, name: str) -> None:
        with contextlib.suppress(APIError):
            thaw(self.docker.inspect_container(name)["Id"])
            self.docker.remove_container(name, force=True, v=True)

    def _remove_volume(self, name: str) -> None:
        with contextlib.suppress(APIError):
            self.docker.remove_volume(name, force=True)

    def _await_state(self, part: str, state: str) -> None:
        deadline = time.monotonic() + EXEC_TIMEOUT_S
        while self.docker.inspect_container(self._object(part))["State"]["Status"] != state:
            if time.monotonic() > deadline:
                raise LabProblem(f"{part} of lab {self.name!r} did not become {state}")
            time.sleep(POLL_S)


def thaw(container: str) -> None:
    """Resume what is paused inside a node: with cgroup v1, frozen processes cannot be killed."""
    for state in glob.glob(f"{FREEZER}/**/*{container}*/**/freezer.state", recursive=True):
        with contextlib.suppress(OSError):  # the processes have ended
            Path(state).write_text("THAWED", encoding="ascii")


def address(container: Mapping[str, Any]) -> str:
    """Return the management address of a node's container, running or not."""
    networks = (container.get("NetworkSettings") or {}).get("Networks") or {}
    for endpoint in networks.values():
        fixed = (endpoint.get("IPAMConfig") or {}).get("IPv4Address", "")
        return str(fixed or endpoint.get("IPAddress", ""))
    return ""


def without_unknown_capability(body: dict[str, Any], error: APIError) -> dict[str, Any]:
    """Return the container's specification without the capability that the engine does not know.

    Raises:
        APIError: the error has another cause.
    """
    capabilities = body["HostConfig"].get("CapAdd") or []
    known = [name for name in capabilities if f"CAP_{name}" not in error.explanation.upper()]
    if "unknown capability" not in error.explanation.lower() or len(known) == len(capabilities):
        raise error
    return {**body, "HostConfig": {**body["HostConfig"], "CapAdd": known}}


def bounding_capabilities(engine_socket: str) -> spec.Capabilities:
    """Return the engine's bounding set of capabilities, from the process at the other end of its socket."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(engine_socket)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", peer)[0] or os.getpid()  # 0: a process outside our PID namespace
    return spec.capabilities(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), last)


def parallel(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Return the results of a function for all items, several at a time; raise the first error at the end."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        return [future.result() for future in [pool.submit(function, item) for item in items]]
