"""In rdma's mode exclusive, which RDMA device moves to a container, and what is said where it cannot.

A script stands in for the command `rdma`, on a tree of sysfs; the namespace is this process's own.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base import iproute2
from ansible_collections.rdm.provision.rdm_sriov import rdma_namespace
from ansible_collections.rdm.provision.rdm_sriov.driver import Driver
from ansible_collections.rdm.provision.rdm_sriov.rdma_namespace import (
    RdmaNamespaces,
    to_move,
)
from ansible_collections.rdm.provision.rdm_sriov.state import State
from ansible_collections.rdm.provision.rdm_sriov.vfs import VfProblem

from tests.unit.rdm_sriov.test_driver import NETWORK, Machine, Plugin
from trainer.tests.waiting import wait_until

NAMESPACE = "/proc/self/ns/net"
ANOTHER_MODE = "rdma system set netns shared"


@pytest.mark.parametrize("ethernet", [True, False])
@pytest.mark.parametrize("needed", [True, False])
def test_nothing_moves_in_the_mode_shared(ethernet: bool, needed: bool) -> None:
    assert to_move(False, ethernet, "0000:41:00.1", ["mlx5_1"], needed) == ""


def test_in_the_mode_exclusive_the_device_of_an_ethernet_vf_moves() -> None:
    assert to_move(True, True, "0000:41:00.1", ["mlx5_1"], needed=True) == "mlx5_1"
    assert to_move(True, True, "0000:41:00.1", ["mlx5_1"], needed=False) == "mlx5_1"
    assert to_move(True, True, "0000:41:00.1", [], needed=False) == ""
    # A container that wants none of RDMA has its InfiniBand interface as before.
    assert to_move(True, False, "0000:41:00.1", ["mlx5_1"], needed=False) == ""


def test_a_device_that_a_container_needs_and_cannot_have_is_refused() -> None:
    with pytest.raises(VfProblem, match=f"take the interface of 0000:41:00.1 away .*{ANOTHER_MODE}"):
        to_move(True, False, "0000:41:00.1", ["mlx5_1"], needed=True)
    with pytest.raises(VfProblem, match=r"RDMA device of 0000:41:00\.1, with which .* another one has"):
        to_move(True, True, "0000:41:00.1", [], needed=True)


class Node:
    """Two VFs with an RDMA device each, and the calls of `rdma`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.messages: list[str] = []
        for number in range(2):
            device = root / f"sys/class/infiniband/mlx5_{number}"
            (root / f"sys/bus/ib0.{number}").mkdir(parents=True)
            device.mkdir(parents=True)
            (device / "device").symlink_to(root / f"sys/bus/ib0.{number}")
            self.verbs(number).mkdir(parents=True)
            (self.verbs(number) / "ibdev").write_text(f"mlx5_{number}\n")
        self.mode("N")
        program = root / "bin/rdma"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\necho "$* $(readlink {root}/netns/$5)" >> {root}/calls\n'
            f"[ ! -e {root}/error ] || {{ cat {root}/error >&2; exit 1; }}\n"
            f"[ ! -e {root}/then ] || sh {root}/then\n"
        )
        program.chmod(0o755)
        self.namespaces = RdmaNamespaces(str(root / "sys"), str(root / "netns"), self.messages.append)

    def verbs(self, number: int) -> Path:
        """The directory of a device's character device."""
        return self.root / f"sys/class/infiniband_verbs/uverbs{number}"

    def mode(self, letter: str) -> None:
        """Let the kernel say which mode rdma is in."""
        path = self.root / "sys/module/ib_core/parameters/netns_mode"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{letter}\n")

    def commands(self) -> list[str]:
        """The arguments of each call of `rdma`, and the namespace that the last one led to."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Node(tmp_path)


def moved(number: int, namespace: object = NAMESPACE) -> str:
    return f"dev set mlx5_{number} netns rdm-sriov-mlx5_{number} {namespace}"


def test_a_device_goes_into_a_namespace_that_is_there(node: Node) -> None:
    node.namespaces.lend("ib0.1", True, NAMESPACE)
    assert node.commands() == [moved(1)]
    assert list((node.root / "netns").iterdir()) == [], "a name is left"
    node.mode("Y")
    node.namespaces.lend("ib0.0", True, NAMESPACE)
    assert node.commands() == [moved(1)]


def test_a_device_waits_for_a_namespace_that_the_engine_makes_later(node: Node) -> None:
    namespace = node.root / "later"
    node.namespaces.lend("ib0.0", True, str(namespace))
    namespace.touch()  # as the engine does, before it mounts the namespace there
    time.sleep(0.2)
    assert not node.commands()
    namespace.unlink()
    namespace.symlink_to(NAMESPACE)
    wait_until("it moves", node.commands, lambda found: found == [moved(0, namespace)])


def test_a_namespace_that_is_never_made_is_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_namespace, "_TIMEOUT_S", 0.1)
    node.namespaces.lend("ib0.0", True, str(node.root / "never"))
    wait_until("it is reported", lambda: node.messages)
    assert "the RDMA device mlx5_0 stays here: within 0.1 s there was no namespace" in node.messages[0]
    assert node.commands() == []


def test_refusal_by_the_kernel_is_reported_with_a_hint(node: Node) -> None:
    (node.root / "error").write_text("error: Operation not supported\n")
    with pytest.raises(VfProblem, match=rf"mlx5_0 cannot move .* not supported\. .*{ANOTHER_MODE}"):
        node.namespaces.lend("ib0.0", True, NAMESPACE)
    later = node.root / "later"
    later.symlink_to(NAMESPACE)
    node.namespaces._follow("mlx5_0", str(later))
    assert "mlx5_0 cannot move" in node.messages[0]
    assert list((node.root / "netns").iterdir()) == []


def test_a_node_without_the_command_gets_the_package_to_install(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(node.root))
    monkeypatch.setattr(iproute2, "_PATH", "")
    with pytest.raises(VfProblem, match=r"the rdma command \(package iproute2\) is missing"):
        node.namespaces.lend("ib0.0", True, NAMESPACE)


def test_a_device_that_programs_know_under_another_name_afterwards_is_an_error(node: Node) -> None:
    (node.root / "then").write_text(f"mv {node.verbs(0)} {node.verbs(7)}\n")
    with pytest.raises(VfProblem, match="is uverbs7 for programs since it moved, and was uverbs0"):
        node.namespaces.lend("ib0.0", True, NAMESPACE)


def test_devices_move_one_after_the_other(node: Node) -> None:
    (node.root / "then").write_text(
        f"[ ! -e {node.root}/busy ] || echo two at once >> {node.root}/calls\n"
        f"touch {node.root}/busy; sleep 0.1; rm {node.root}/busy\n"
    )
    threads = [
        threading.Thread(target=node.namespaces.lend, args=(f"ib0.{number}", True, NAMESPACE))
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(node.commands()) == [moved(0), moved(1)]


class Server(Plugin):
    """A driver whose VFs have RDMA devices."""

    def __init__(self, node: Node, **machine: Any) -> None:
        self.node = node
        super().__init__(node.root, Machine(**machine))

    def start(self) -> None:
        self.state = State(str(self.directory))
        self.driver = Driver(self.machine, self.state, lambda: self.known, rdma=self.node.namespaces)

    def container(self, name: str, *, bound: str = "", **_: Any) -> str:  # type: ignore[override]
        options = {"rdm.provision.vf": bound} if bound else {}
        ids = {"NetworkID": NETWORK, "EndpointID": name}
        self.call("CreateEndpoint", **ids, Interface={}, Options=options)
        self.call("Join", **ids, SandboxKey=NAMESPACE)
        return self.state.endpoints[name].vf


def test_the_plugin_lends_the_device_with_the_vf(node: Node) -> None:
    plugin = Server(node)
    plugin.network()
    assert plugin.container("a", bound="ib0.1") == "ib0.1"
    assert node.commands() == [moved(1)]


def test_an_infiniband_vf_whose_device_is_needed_is_refused_before_anything_is_done(node: Node) -> None:
    plugin = Server(node, ethernet=False)
    plugin.network()
    with pytest.raises(VfProblem, match=ANOTHER_MODE):
        plugin.container("a", bound="ib0.1")
    assert plugin.state.endpoints == {}
    assert plugin.container("b") == "ib0.0", "without RDMA it has its interface"
    assert node.commands() == []


def test_a_container_whose_device_cannot_move_does_not_start(node: Node) -> None:
    plugin = Server(node)
    plugin.network()
    (node.root / "error").write_text("error: Operation not supported\n")
    with pytest.raises(VfProblem, match="cannot move to its container"):
        plugin.container("a", bound="ib0.0")
    # The engine takes the endpoint back.
    plugin.call("DeleteEndpoint", NetworkID=NETWORK, EndpointID="a")
    assert plugin.state.endpoints == {}
