"""A container on an InfiniBand partition has a child of a VF's interface, and the VF.

The kernel's part is played on a tree of sysfs: what `ip` would do, and what becomes of a child whose network
namespace dies.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import GENERIC
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import read_pf
from ansible_collections.rdm.provision.rdm_sriov.driver import Driver
from ansible_collections.rdm.provision.rdm_sriov.state import State
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    NodeVfs,
    VfProblem,
)

INFINIBAND = 32
OPTIONS = {"netdevice": "ib0", "pkey": "0x8001"}


class Kernel(NodeVfs):
    """A card with two VFs, and the interfaces on them."""

    def __init__(self, root: Path, kind: int = INFINIBAND) -> None:
        super().__init__(str(root))
        self.root = root
        self.kind = kind
        self.commands: list[str] = []
        self.refuses = ""
        self.count = 0
        card = self.interface_of("0000:3b:00.0", "ib0")
        (card / "sriov_totalvfs").write_text("8\n")
        (card / "sriov_numvfs").write_text("2\n")
        (card / "driver").symlink_to("../mlx5_core")
        (root / "bus/pci/devices/mlx5_core").mkdir()
        for number in (0, 1):
            vf = self.interface_of(f"0000:3b:00.{number + 1}", f"ib{number + 1}")
            (card / f"virtfn{number}").symlink_to(vf)
            (vf / "driver").symlink_to("../mlx5_core")

    def interface_of(self, pci: str, name: str, below: str = "") -> Path:
        """Make an interface on a VF, or on another interface; return the VF's directory."""
        device = self.root / "bus/pci/devices" / pci
        net = device / "net" / name
        net.mkdir(parents=True)
        (net / "device").symlink_to(device)
        self.count += 1
        number = str(self.count)
        reported = {
            "type": str(self.kind),
            "address": f"80:00:{self.count:02x}" + ":00" * 17,
            "mtu": "2044",
            "ifindex": number,
            "iflink": (net.parent / below / "ifindex").read_text() if below else number,
            "ifalias": "",
        }
        for file, text in reported.items():
            (net / file).write_text(text)
        (self.root / "class/net").mkdir(parents=True, exist_ok=True)
        (self.root / "class/net" / name).symlink_to(net)
        return device

    def _ip(self, words: Sequence[str]) -> str:  # type: ignore[override]
        line = " ".join(words)
        self.commands.append(line)
        if self.refuses and self.refuses in line:
            raise VfProblem(f"ip {line}: refused")
        if words[:2] == ["link", "add"]:
            below = self.root / "class/net" / words[3]
            self.interface_of((below / "device").resolve().name, words[5], words[3])
        elif words[:2] == ["link", "del"]:
            self.take(words[3])
        elif "alias" in words:
            (self.root / "class/net" / words[3] / "ifalias").write_text(words[-1])
        return ""

    def take(self, name: str) -> Path:
        """Let an interface go to a container; return where it is kept."""
        entry = self.root / "class/net" / name
        net = entry.resolve()
        entry.unlink()
        number = (net / "ifindex").read_text()
        away = self.root / f"{name}-away-{number}-{net.parents[1].name}"
        shutil.move(net, away)
        return away

    def bring(self, away: Path, name: str) -> None:
        """Let an interface come back, under the name that it had in the container."""
        net = self.root / "bus/pci/devices" / away.name.rpartition("-")[2] / "net" / name
        shutil.move(away, net)
        (self.root / "class/net" / name).symlink_to(net)


class Node:
    """The plugin, on such a card."""

    def __init__(self, directory: Path, kernel: Kernel) -> None:
        self.kernel = kernel
        self.directory = directory
        self.start()

    def start(self) -> None:
        """Start the plugin, or another one after it."""
        self.state = State(str(self.directory))
        self.log: list[str] = []
        self.driver = Driver(self.kernel, self.state, dict, warn=self.log.append)

    def call(self, name: str, **request: Any) -> dict[str, Any]:
        return self.driver.answer(f"NetworkDriver.{name}", {"NetworkID": "n", **request})

    def network(self, **options: str) -> None:
        self.call("CreateNetwork", Options={GENERIC: options}, IPv4Data=[{"Pool": "192.169.16.0/24"}])

    def container(self, name: str) -> Path:
        """Start a container; return what it has got."""
        self.call("CreateEndpoint", EndpointID=name, Interface={})
        joined = self.call("Join", EndpointID=name)
        return self.kernel.take(joined["InterfaceName"]["SrcName"])

    def vf(self, name: str) -> str:
        return self.state.endpoints[name].vf


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "state").mkdir()
    made = Node(tmp_path / "state", Kernel(tmp_path / "sys"))
    made.network(**OPTIONS)
    made.kernel.commands.clear()
    return made


def test_the_container_gets_an_interface_on_the_partition(node: Node) -> None:
    node.container("a")
    assert node.kernel.commands == [
        "link set dev ib1 up",
        "link add link ib1 name rdm-p2 type ipoib pkey 0x8001",
        "link set dev rdm-p2 alias rdm-sriov a",
        "link set dev ib1 alias rdm-sriov a",
    ]
    assert node.state.endpoints["a"].hardware.startswith("80:00:04:"), "that of the child"


def test_partition_interface_is_removed_with_its_endpoint(node: Node) -> None:
    away = node.container("a")
    node.kernel.bring(away, "rdm-p2")
    node.kernel.commands.clear()
    node.call("DeleteEndpoint", EndpointID="a")
    assert node.kernel.commands == ["link set dev ib1 alias ", "link del dev rdm-p2"]
    node.container("b")
    node.container("c")
    assert {node.vf("b"), node.vf("c")} == {"0000:3b:00.1", "0000:3b:00.2"}


def test_owner_of_a_partition_interface_is_known_after_restarts_without_state(node: Node) -> None:
    node.container("a")
    node.start()
    node.driver.answer("Plugin.Activate", {})
    node.container("b")
    assert node.vf("b") == "0000:3b:00.2"
    (node.directory / "state.json").unlink()
    node.start()
    node.network(**OPTIONS)
    with pytest.raises(VfProblem, match="no virtual function of ib0 is free: containers have all 2"):
        node.container("c")
    assert [bool(vf.holder) for vf in read_pf("ib0", str(node.kernel.root), {}).vfs] == [True, True]


def test_interface_returned_by_a_killed_engine_is_removed_before_the_next(node: Node) -> None:
    away = node.container("a")
    node.container("b")
    node.driver.answer("Plugin.Activate", {})
    node.kernel.bring(away, "eth0")  # the name that it had in the container
    node.kernel.commands.clear()
    node.container("c")
    assert node.vf("c") == "0000:3b:00.1"
    assert node.kernel.commands[:2] == ["link set dev ib1 alias ", "link del dev eth0"]


def test_late_returning_interface_is_not_taken_for_another(node: Node) -> None:
    late = node.container("a")
    node.container("b")
    node.call("DeleteEndpoint", EndpointID="a")
    node.container("c")
    assert node.vf("c") == "0000:3b:00.1"
    node.start()
    node.kernel.bring(late, "eth0")
    with pytest.raises(VfProblem, match="no virtual function of ib0 is free"):
        node.container("d")
    node.call("DeleteEndpoint", EndpointID="c")
    assert not (node.kernel.root / "class/net/eth0").exists()


@pytest.mark.parametrize("what", ["type ipoib", "dev rdm-p2 alias", "dev ib1 alias"])
def test_refusal_by_the_kernel_leaves_no_partial_change(node: Node, what: str) -> None:
    node.kernel.refuses = what
    with pytest.raises(VfProblem, match="refused"):
        node.container("a")
    assert not (node.kernel.root / "class/net/rdm-p2").exists()
    node.kernel.refuses = ""
    node.container("a")
    assert node.vf("a") == "0000:3b:00.1"


@pytest.mark.parametrize("what", ["link del", "dev ib1 alias"])
def test_an_end_that_the_kernel_refuses_holds_no_vf(node: Node, what: str) -> None:
    away = node.container("a")
    node.kernel.bring(away, "eth0")
    node.kernel.refuses = what
    assert node.call("DeleteEndpoint", EndpointID="a") == {}
    assert "a" not in State(str(node.directory)).endpoints
    [line] = node.log
    assert line.startswith("the partition of endpoint a is still on 0000:3b:00.1: ip link")
    node.kernel.refuses = ""
    node.container("b")
    node.container("c")
    assert {node.vf("b"), node.vf("c")} == {"0000:3b:00.1", "0000:3b:00.2"}
    assert not (node.kernel.root / "class/net/eth0").exists()


def test_a_network_without_a_partition_makes_none(node: Node) -> None:
    node.network(netdevice="ib0")
    node.kernel.commands.clear()
    assert node.container("a").name.startswith("ib1-away")
    assert node.kernel.commands == []


def test_child_interfaces_of_others_stay(node: Node) -> None:
    node.kernel.interface_of("0000:3b:00.1", "ib1.8005", "ib1")
    away = node.container("a")
    node.kernel.bring(away, "rdm-p2")
    node.call("DeleteEndpoint", EndpointID="a")
    assert (node.kernel.root / "class/net/ib1.8005").exists()


def test_ethernet_has_no_partitions(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    node = Node(tmp_path / "state", Kernel(tmp_path / "sys", kind=1))
    with pytest.raises(VfProblem, match="pkey 0x8001 on ib0: Ethernet has no partitions"):
        node.network(**OPTIONS)
