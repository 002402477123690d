"""Checks of virtual functions: each problem names the value and what would work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plugins.node_reports import container, network, report
from tests.unit.plugins.plugin_utils.checks.findings import (
    OURS,
    RAILS,
    SUBNET,
    problems,
    with_networks,
)


def pf(**changes: Any) -> dict[str, Any]:
    """Return a PF as `node_facts` reports it."""
    sound = {
        "pf": "ib0",
        "pci": "0000:41:00.0",
        "total_vfs": 8,
        "num_vfs": 0,
        "driver": "mlx5_core",
        "infiniband": True,
        "autoprobe": True,
        "bond": "",
        "vfs": [],
    }
    return {**sound, **changes}


VF = {
    "index": 0,
    "pci": "0000:41:00.1",
    "driver": "mlx5_core",
    "netdev": "",
    "mac": "",
    "address": "",
    "port": "",
    "policy": "Follow",
    "vlan": None,
    "trust": None,
    "spoof_check": None,
    "by_files": True,
    "host_use": "",
}
FOUR: dict[str, Any] = {"plugin": "rdm-sriov", "sriov_enabled": True, "sriov_vfs": 4}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([pf()], ""),
        (
            [pf(num_vfs=1, vfs=[VF])],
            "ib0 cannot be changed (it has 1 VFs, not 4) while a container has VF 0",
        ),
        ([pf(total_vfs=2)], "ib0 can have 2 VFs, and 4 are wanted: set sriov_vfs to 2 at most"),
        ([pf(driver="mlx4_core")], "ib0 has the driver mlx4_core (ConnectX-3)"),
        ([pf(bond="bond0")], "ib0 is in the bond bond0"),
        (
            [pf(pf="eth1")],
            "ib0 is to have virtual functions, and has no SR-IOV on this node: choose one of eth1",
        ),
        (
            [],
            "ib0 is to have virtual functions, and has no SR-IOV on this node: switch SR-IOV on",
        ),
    ],
)
def test_vfs_that_cannot_be_made_are_refused(found: list[dict[str, Any]], message: str) -> None:
    sentences = problems(report(sriov=found), **FOUR)
    assert [sentence[: len(message)] for sentence in sentences] == ([message] if message else [])


def test_vfs_need_root() -> None:
    sentences = problems(report(sriov=[pf()]), **FOUR, become=False)
    assert any(sentence.startswith("sriov_vfs needs root") for sentence in sentences)


def below(**changes: Any) -> dict[str, Any]:
    """Return the network's interface as `node_facts` reports it."""
    sound = {
        "name": "ib0",
        "pci": "0000:41:00.0",
        "driver": "mlx5_core",
        "vendor": "0x15b3",
        "total_vfs": 8,
        "num_vfs": 0,
        "virtual": False,
        "bond": "",
        "iommu": "",
        "children": [],
        "siblings": [],
        "infiniband": True,
    }
    return {**sound, **changes}


ON_IB0: dict[str, Any] = {
    "network_driver": "sriov",
    "network_options": {"netdevice": "ib0"},
    "plugin": "rdm-sriov",
}


def test_missing_vfs_are_refused_before_the_plugin_runs_out() -> None:
    none = report(fabric_interfaces=[below()], sriov=[pf()])
    message = (
        "sriov_vfs 0 makes no virtual functions, and ib0 has none now: set sriov_vfs to how many it shall "
    )
    assert problems(none, **ON_IB0) == [message + "have, 8 at most"]
    assert problems(none, **ON_IB0, sriov_vfs=4) == []
    for other in ({"plugin": "upstream"}, {"plugin": ""}, {"network_options": {"mode": "passthrough"}}):
        found = report(fabric_interfaces=[below()], docker_min_api_version="1.12")
        assert problems(found, **{**ON_IB0, **other}) == []
    some = report(fabric_interfaces=[below(num_vfs=2, total_vfs=2)])
    assert problems(some, **ON_IB0) == []


def test_every_pf_without_vfs_is_named_with_the_common_maximum() -> None:
    found = report(
        interfaces=[{"name": name, "addresses": []} for name in ("ib0", "ib1")],
        fabric_interfaces=[below(), below(name="ib1", pci="0000:42:00.0", total_vfs=4)],
    )
    assert problems(found, RAILS, **ON_IB0, container_rails=["ib0", "ib1"]) == [
        "sriov_vfs 0 makes no virtual functions, and ib0, ib1 have none now: set sriov_vfs to how many each "
        "shall have, 4 at most"
    ]


def test_firmware_that_the_run_repairs_makes_no_vfs_yet() -> None:
    settings = {**ON_IB0, "sriov_firmware": True, "sriov_firmware_vfs": 16}
    found = report(fabric_interfaces=[below(total_vfs=0, firmware={"tool": "mstconfig", "error": "asleep"})])
    refused = problems(found, **settings)
    assert [line.partition(":")[0] for line in refused] == ["firmware"], "the layer below says it all"
    found["fabric_interfaces"][0]["firmware"] = {
        "current": {"sriov": False, "vfs": 0},
        "next": {"sriov": False, "vfs": 0},
    }
    [sentence] = problems(found, **settings)
    assert sentence.startswith("sriov_vfs 0 makes no virtual functions, and ib0 has none now")
    assert sentence.endswith("16 at most")


UPSTREAM_RUNS = {
    **container("rdm-sriov-plugin"),
    "labels": {"rdm.provision.cluster": "rdm", "rdm.provision.role": "plugin"},
}


def moving(held: int, *containers: dict[str, Any], netdevice: str = "ib0") -> Any:
    """A node with the upstream plugin, and containers with all VFs of ib0 but the last ones."""
    vfs = [
        {**VF, "index": one, "pci": f"0000:41:00.{one + 1}", "netdev": "" if one < held else f"ib0v{one}"}
        for one in range(4)
    ]
    on_ib0 = network("ibnet", SUBNET, driver="sriov", options={"netdevice": netdevice}, labels=OURS)
    on_ib0["subnets"] = [{"subnet": SUBNET, "gateway": "192.169.16.1"}]
    found = with_networks(on_ib0, containers=(UPSTREAM_RUNS, *containers))
    found["sriov"] = [pf(num_vfs=4, vfs=vfs)]
    found["fabric_interfaces"] = [below(num_vfs=4)]
    found["network_plugin"] = {**found["network_plugin"], "served_by": "a container", "socket": "/run/p.sock"}
    return found


MOVED: dict[str, Any] = {**ON_IB0, "network_replace": True, "sriov_vfs": 8}


def test_containers_ended_by_a_move_from_upstream_do_not_block_their_vfs() -> None:
    ours = container("rdm", "rdm", ibnet="192.169.16.100")
    assert problems(moving(1, ours), **MOVED) == []
    stays = "ib0 cannot be changed (it has 4 VFs, not 8) while a container has VF 0"
    for found in (
        moving(2, ours),  # one of them is somebody else's
        moving(1, {**ours, "state": "exited"}),
        moving(1, ours, netdevice="ib1"),
    ):
        [sentence] = problems(found, **MOVED)
        assert sentence.startswith(stays)
    # Nothing is removed unless network_replace is set, and that is reported too.
    refused = problems(moving(1, ours), **{**MOVED, "network_replace": False})
    assert any(line.startswith(stays) for line in refused)
    assert any("set network_replace: true" in line for line in refused)


def test_a_virtual_machine_keeps_its_vf_through_a_move_from_upstream() -> None:
    ours = container("rdm", "rdm", ibnet="192.169.16.100")
    found = moving(1, ours)
    found["sriov"][0]["vfs"][0]["driver"] = "vfio-pci"
    [sentence] = problems(found, **MOVED)
    assert "while vfio-pci has VF 0" in sentence


def test_a_move_from_upstream_needs_vfs_to_be_made_though_there_are_some_now() -> None:
    ours = container("rdm", "rdm", ibnet="192.169.16.100")
    assert problems(moving(1, ours), **{**MOVED, "sriov_vfs": 0}) == [
        "sriov_vfs 0 makes no virtual functions, and rdma/sriov-plugin takes those of ib0 with it: set "
        "sriov_vfs to how many it shall have, 8 at most"
    ]


def test_a_move_from_upstream_is_refused_while_the_plugin_serves_others() -> None:
    found = moving(0)
    theirs = network("theirs", "10.9.0.0/24", driver="sriov", options={"netdevice": "ib1"})
    found["docker"]["networks"].append(theirs)
    assert problems(found, **MOVED) == [
        "rdma/sriov-plugin serves theirs, not of this cluster, too, so that it cannot be replaced: remove "
        "it, or keep sriov_plugin: upstream"
    ]


def test_a_vlan_on_infiniband_and_a_partition_on_ethernet_are_refused() -> None:
    node = report(sriov=[pf(), pf(pf="eth0", infiniband=False)])
    more: dict[str, Any] = {"network_driver": "sriov", "network_parent": "ib0", "plugin": "rdm-sriov"}
    assert problems(node, **more, network_options={"vlan": "100"}) == [
        "network_vlan 100 does not fit ib0: that is InfiniBand, which has partitions in the place of VLANs: "
        "leave it out, or set network_pkey to a partition"
    ]
    assert problems(node, **more, network_options={"pkey": "0x8001"}) == []
    more["network_parent"] = "eth0"
    assert problems(node, **more, network_options={"pkey": "0x8001"}) == [
        "network_pkey 0x8001 does not fit eth0: that is Ethernet, which has no partitions: leave it out, or "
        "set network_vlan"
    ]
    assert problems(node, **more, network_options={"vlan": "100"}) == []
    more["container_rails"] = ["eth0", "ib0"]
    assert len(problems(node, RAILS, **more, network_options={"vlan": "100"})) == 1


def test_one_pf_under_two_names_is_refused() -> None:
    twice = ["ib0", "0000:41:00.0"]
    assert problems(report(sriov=[pf()]), **FOUR, sriov_vf_pfs=twice) == [
        "0000:41:00.0 is the same PCI function as ib0: name it once"
    ]


def test_vfs_of_a_device_without_pci_are_refused() -> None:
    one = {"name": "ib0", "pci": "", "bond": "", "virtual": False, "driver": "", "vendor": "", "iommu": ""}
    found = report(fabric_interfaces=[{**one, "total_vfs": 0, "num_vfs": 0, "infiniband": False}])
    more: dict[str, Any] = {"network_driver": "sriov", "plugin": "rdm-sriov"}
    [sentence] = problems(found, **more)
    assert sentence.startswith("host: network_parent ib0 is no PCI device, and VFs belong to one: name a ca")
    assert problems(found, **more, network_options={"mode": "passthrough"}) == []
    assert problems(found, **more, sriov_command=["stand-in"]) == [], "the lab's"
