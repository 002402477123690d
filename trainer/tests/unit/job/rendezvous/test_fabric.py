# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric of a member: its interface, and the settings for NCCL, Gloo and UCX."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_core.errors import TrainerError
from rdm_job.rendezvous import fabric
from rdm_job.rendezvous.fabric import Fabric, Port


def _device(
    root: Path,
    name: str,
    *,
    state: str = "4: ACTIVE",
    layer: str = "InfiniBand",
    rate: str = "400 Gb/sec (4X NDR)",
    net: str = "",
    is_vf: bool = False,
) -> Path:
    device = root / "class/infiniband" / name
    port = device / "ports/1"
    port.mkdir(parents=True)
    for key, value in (("state", state), ("link_layer", layer), ("rate", rate)):
        (port / key).write_text(f"{value}\n")
    if net:
        (device / "device/net" / net).mkdir(parents=True)
    if is_vf:
        (device / "device/physfn").mkdir(parents=True)
    return port


def _gids(port: Path, table: dict[int, tuple[str, str]]) -> None:
    (port / "gids").mkdir()
    (port / "gid_attrs/types").mkdir(parents=True)
    for index, (gid, kind) in table.items():
        (port / "gids" / str(index)).write_text(f"{gid}\n")
        (port / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")


def test_only_active_ports_count(tmp_path: Path) -> None:
    _device(tmp_path, "mlx5_0", net="ib0")
    _device(tmp_path, "mlx5_1", state="1: DOWN")
    (port,) = fabric.rdma_ports(tmp_path)
    assert (str(port), port.is_ethernet, port.interfaces, port.is_vf) == ("mlx5_0:1", False, ("ib0",), False)


def test_the_interface_of_an_active_port_is_taken_with_its_rails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _device(tmp_path, "mlx5_0", net="ib0")
    _device(tmp_path, "mlx5_1", net="ib1")
    _device(tmp_path, "mlx5_2")  # another container's
    _device(tmp_path, "mlx5_3", net="ib3", rate="100 Gb/sec (4X EDR)")
    _device(tmp_path, "mlx5_4", net="eth4", layer="Ethernet")
    _device(tmp_path, "mlx5_5", net="ib0v0", is_vf=True)
    monkeypatch.setattr(fabric, "address_of", {"ib1": "10.9.0.7", "eth4": "10.1.0.7"}.get)
    found = fabric.find_fabric(sysfs=tmp_path)
    assert (found.interface, found.address) == ("ib1", "10.9.0.7")
    assert [str(port) for port in found.ports] == ["mlx5_0:1", "mlx5_1:1"]
    # A VLAN, a bond or a bridge does not belong to a port.
    monkeypatch.setattr(fabric, "address_of", {"bond0": "10.9.0.7"}.get)
    assert len(fabric.find_fabric("bond0", sysfs=tmp_path).ports) == 6


def test_without_rdma_the_interface_of_the_route_to_the_launcher_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fabric, "outward_address", {"10.1.2.3": "10.1.2.9"}.get)
    monkeypatch.setattr(fabric, "interface_of", {"10.1.2.9": "eth1"}.get)
    assert fabric.find_fabric("", "10.1.2.3", tmp_path) == Fabric("eth1", "10.1.2.9")


def test_unreachable_address_is_never_advertised(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"127\.0\.0\.1.*--interface"):
        fabric.find_fabric("lo", sysfs=tmp_path)


def test_missing_interface_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="--interface is ib7"):
        fabric.find_fabric("ib7", sysfs=tmp_path)


def test_infiniband_needs_no_gid_index(tmp_path: Path) -> None:
    port = Port("mlx5_0", 1, is_ethernet=False, interfaces=("ib0",))
    assert fabric.library_settings(Fabric("ib0", "10.9.0.7", (port,)), tmp_path) == {
        "NCCL_SOCKET_IFNAME": "=ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_IB_HCA": "=mlx5_0:1",
        "UCX_NET_DEVICES": "mlx5_0:1",
    }


def test_gid_index_is_that_of_the_containers_own_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        3: ("fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2"),
        12: ("0000:0000:0000:0000:0000:ffff:0a09:0007", "IB/RoCE v1"),
        13: ("0000:0000:0000:0000:0000:ffff:0a09:0007", "RoCE v2"),
    }
    _gids(_device(tmp_path, "mlx5_0", layer="Ethernet", net="eth2"), table)
    ports = tuple(fabric.rdma_ports(tmp_path))
    assert fabric.library_settings(Fabric("eth2", "10.9.0.7", ports), tmp_path)["NCCL_IB_GID_INDEX"] == "13"
    assert "NCCL_IB_GID_INDEX" not in fabric.library_settings(Fabric("eth2", "10.9.0.8", ports), tmp_path)

    # Each rail has its own address, and NCCL uses one index for all.
    monkeypatch.setattr(fabric, "address_of", {"eth2": "10.9.0.7", "eth3": "10.9.1.7"}.get)
    other = _device(tmp_path, "mlx5_1", layer="Ethernet", net="eth3")
    _gids(other, {13: ("0000:0000:0000:0000:0000:ffff:0a09:0107", "RoCE v2")})
    rails = fabric.find_fabric("eth2", sysfs=tmp_path)
    settings = fabric.library_settings(rails, tmp_path)
    assert (settings["NCCL_IB_HCA"], settings["NCCL_IB_GID_INDEX"]) == ("=mlx5_0:1,mlx5_1:1", "13")
    (other / "gids/13").rename(other / "gids/5")
    assert "NCCL_IB_GID_INDEX" not in fabric.library_settings(rails, tmp_path)


def test_variables_of_the_user_win() -> None:
    environment = {"NCCL_IB_HCA": "mlx5", "OTHER": "1"}
    fabric.adopt({"NCCL_IB_HCA": "=mlx5_0:1", "GLOO_SOCKET_IFNAME": "ib0"}, environment)
    assert environment == {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "ib0", "OTHER": "1"}


def test_missing_libraries_are_named_with_their_packages() -> None:
    port = Port("mlx5_0", 1, is_ethernet=False, interfaces=())
    missing = fabric.missing_libraries(Fabric("ib0", "10.9.0.7", (port,)), find=lambda name: None)
    assert missing["libibverbs"] == "libibverbs1"
    assert "libmlx5-1" in missing["libmlx5"]
    assert not fabric.missing_libraries(Fabric("eth0", "10.9.0.7"), find=lambda name: None)
