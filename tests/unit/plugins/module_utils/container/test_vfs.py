"""The devices of the VF that a container gets, as far as the node shows them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.container import vfs
from ansible_collections.rdm.provision.plugins.module_utils.container.vfs import (
    ContainerVfs,
    Given,
    devices,
    held,
    lasting_mac,
    stayed_behind,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import RESERVE

from tests.fixtures.sysfs.build import build

MAC = "0c:42:a1:5e:10:01"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return build("rdma", tmp_path)


def paths(tree: Path, given: Given) -> list[str] | None:
    found = devices(given, str(tree / "sys"), str(tree / "dev"))
    return None if found is None else [Path(one).name for one in found]


def test_devices_are_those_of_the_vf_wherever_its_interface_is(node: Path) -> None:
    assert paths(node, Given("0000:41:00.1", "ib1")) == ["uverbs1", "umad1", "issm1", "rdma_cm"]
    assert paths(node, Given("0000:41:00.2")) == ["uverbs2", "umad2", "issm2", "rdma_cm"]
    assert paths(node, Given("0000:01:10.2", "eth3")) == []
    # A VF without a PCI address is found by its interface, while that is on the node.
    assert paths(node, Given("eth2", "eth2")) == ["uverbs8", "umad8", "rdma_cm"]
    assert paths(node, Given("eth2")) is None
    assert paths(node, Given("")) is None


def exclusive(node: Path) -> Path:
    """Put rdma into exclusive mode; return the program that reports it."""
    mode = node / "sys/module/ib_core/parameters/netns_mode"
    mode.parent.mkdir(parents=True)
    mode.write_text("N\n")
    return mode


def test_devices_that_no_container_could_open_are_refused_before_it_is_made(node: Path) -> None:
    mode = exclusive(node)
    infiniband = Given("0000:41:00.1", "ib1")
    with pytest.raises(
        NodeError, match=r"mode exclusive, in which no container .* interface ib1 away.* set netns shared"
    ):
        paths(node, infiniband)
    assert paths(node, Given("0000:01:10.2", "eth3")) == [], "it has no RDMA device"
    assert paths(node, Given("0000:a1:00.1", "ens11")) == ["uverbs4", "umad4", "rdma_cm"]
    mode.write_text("Y\n")
    assert paths(node, infiniband)


def test_device_is_in_its_containers_namespace_in_exclusive_mode(node: Path) -> None:
    exclusive(node)
    running = Given("0000:a1:00.2")
    assert paths(node, running) == ["uverbs5", "umad5", "rdma_cm"]
    why = stayed_behind(running.key, str(node / "sys"))
    assert re.search(r"mlx5_5 of 0000:a1:00\.2 did not move .* journalctl -u rdm-sriov", why)
    # The kernel shows it only in the container's namespace, but its character devices in every one.
    shutil.rmtree(node / "sys/class/infiniband/mlx5_5")
    with pytest.raises(NodeError, match="has no RDMA device and must have one"):
        paths(node, running)
    for name in ("infiniband_verbs/uverbs5", "infiniband_mad/umad5"):
        (node / "sys/class" / name / "device").symlink_to(node / "sys/bus/pci/devices/0000:a1:00.2")
    assert paths(node, running) == ["uverbs5", "umad5", "rdma_cm"]
    assert stayed_behind(running.key, str(node / "sys")) == ""


def test_no_device_stays_on_the_host_in_shared_mode(node: Path) -> None:
    assert stayed_behind("0000:a1:00.2", str(node / "sys")) == ""
    assert stayed_behind("", str(node / "sys")) == ""


@pytest.mark.parametrize(
    ("kind", "mac", "lasting"),
    [("0", MAC, MAC), ("3", MAC, MAC), ("1", MAC, ""), ("0", ":".join(["00"] * 20), ""), ("0", "", "")],
)
def test_temporary_address_is_not_required(node: Path, kind: str, mac: str, lasting: str) -> None:
    (node / "sys/class/net/ens11/addr_assign_type").write_text(f"{kind}\n")
    assert lasting_mac(Given("0000:a1:00.1", "ens11", mac), str(node / "sys")) == lasting
    assert lasting_mac(Given("0000:a1:00.1", "", mac), str(node / "sys")) is None


def test_vf_removed_under_its_container_is_predicted_to_return(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = "ffff:1f:10.0"
    monkeypatch.setattr(vfs, "held", lambda socket, found, network: gone)
    had = {"ibnet": {"vf": gone, "devices": ["/dev/infiniband/uverbs2"], "mac": MAC}}
    own = ContainerVfs(DockerAPI("/nowhere.sock"), "/nowhere.sock", [("ibnet", "192.169.16.101")])
    assert own.settings({}, had, check=True) == had


@pytest.mark.parametrize(
    ("operation", "reservation"),
    [
        ({"rdm.provision.vf": "eth2"}, {"Vf": {"pci": "", "pf": "eth2", "mac": MAC.upper()}}),
        ({"rdm.provision.function": "eth2"}, {"Function": {"pci": "", "parent": "eth2", "mac": MAC.upper()}}),
    ],
    ids=["this release", "before 0.6.0"],
)
def test_a_plugin_of_an_earlier_release_is_understood(
    monkeypatch: pytest.MonkeyPatch, operation: dict[str, str], reservation: dict[str, Any]
) -> None:
    answers = {"NetworkDriver.EndpointOperInfo": {"Value": operation}, RESERVE: reservation}
    monkeypatch.setattr(vfs, "call_plugin", lambda socket, call, *arguments: answers[call])
    network = {"Id": "n", "IPAM": {"Config": [{"Subnet": "192.169.16.0/24"}]}}
    monkeypatch.setattr(vfs, "inspect", lambda *arguments: network)
    ends = {"ibnet": {"NetworkID": "n", "EndpointID": "e"}}
    running = {"State": {"Running": True}, "NetworkSettings": {"Networks": ends}}
    assert held("/plugin.sock", running, "ibnet") == "eth2"
    of_container = ContainerVfs(DockerAPI("/nowhere.sock"), "/plugin.sock", [("ibnet", "192.169.16.101")])
    assert of_container._reserve("ibnet", "192.169.16.101") == Given("eth2", "", MAC)


def test_a_device_that_moves_a_moment_after_the_start_is_waited_for(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def devices(given: Given) -> list[str]:
        seen.append(given.key)
        if len(seen) < 3:
            raise NodeError("it did not move")
        return []

    monkeypatch.setattr(vfs, "devices", devices)
    vfs._wait_for_devices("0000:a1:00.2")
    assert seen == ["0000:a1:00.2"] * 3
    monkeypatch.setattr(vfs, "_MOVES_S", 0.0)
    seen.clear()
    with pytest.raises(NodeError, match="did not move"):
        vfs._wait_for_devices("0000:a1:00.2")
