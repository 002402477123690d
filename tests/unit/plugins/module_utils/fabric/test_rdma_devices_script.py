"""The RDMA devices that a container can use, and the one of its address, in trees of sysfs and /dev."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.fabric import rdma_devices_script as script

ADDRESS = "192.169.16.101"
LINK_LOCAL = "fe80:0000:0000:0000:b859:9fff:fe12:3402"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


class Container:
    """A container's view of a node with several RDMA devices."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def device(
        self, number: int, *, given: bool = True, gids: dict[int, tuple[str, str]] | None = None
    ) -> Path:
        """Add mlx5_<number> with uverbs and umad of that number; return its port's directory."""
        name = f"mlx5_{number}"
        port = self.root / f"sys/class/infiniband/{name}/ports/1"
        write(port / "state", "4: ACTIVE")
        write(port / "rate", "200 Gb/sec (4X HDR)")
        write(port / "link_layer", "Ethernet" if gids else "InfiniBand")
        for index, (gid, kind) in (gids or {0: (LINK_LOCAL, "IB/RoCE v1")}).items():
            write(port / f"gids/{index}", gid)
            write(port / f"gid_attrs/types/{index}", kind)
        (self.root / f"sys/class/infiniband/{name}/device/net/eth{number}").mkdir(parents=True)
        write(self.root / f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
        write(self.root / f"sys/class/infiniband_mad/umad{number}/ibdev", name)
        if given:
            write(self.root / f"dev/infiniband/uverbs{number}", "")
            write(self.root / f"dev/infiniband/umad{number}", "")
        return port

    def gather(self, rails: str = "1") -> dict[str, object]:
        return script.gather(ADDRESS, str(self.root), rails)


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    """A container that has perftest and whose fabric interface is eth0."""
    for name in script.PROGRAMS:
        program = tmp_path / "bin" / name
        write(program, "")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(script, "interface_of", lambda _address: "eth0")
    return Container(tmp_path / "root")


def test_only_devices_that_can_be_opened_are_usable(container: Container) -> None:
    container.device(0, given=False)
    container.device(2)
    write(container.root / "dev/infiniband/rdma_cm", "")
    found = container.gather()
    assert found["problem"] == ""
    assert found["usable"] == {
        "/dev/infiniband/rdma_cm": "",
        "/dev/infiniband/umad2": "mlx5_2",
        "/dev/infiniband/uverbs2": "mlx5_2",
    }
    assert (found["device"], found["ib_port"], found["gid_index"]) == ("mlx5_2", 1, None)
    assert (found["rate_gbit"], found["link_layer"], found["foreign"]) == (200.0, "InfiniBand", [])


def test_the_gid_table_says_which_device_and_which_index(container: Container) -> None:
    mine = script.gid_of(ADDRESS)
    assert mine == "0000:0000:0000:0000:0000:ffff:c0a9:1065"
    container.device(1, gids={0: (LINK_LOCAL, "IB/RoCE v1"), 3: (script.gid_of("10.0.0.1"), "RoCE v2")})
    container.device(4, gids={0: (LINK_LOCAL, "RoCE v2"), 2: (mine, "IB/RoCE v1"), 3: (mine, "RoCE v2")})
    found = container.gather()
    assert (found["device"], found["gid_index"]) == ("mlx5_4", 3)


def test_ipoib_has_the_guid_in_its_hardware_address(container: Container) -> None:
    container.device(1)
    port = container.device(2)
    write(port / "gids/0", "fe80:0000:0000:0000:0011:2233:4455:6677")
    address = "00:00:10:29:fe:80:00:00:00:00:00:00:00:11:22:33:44:55:66:77"
    write(container.root / "sys/class/net/eth0/address", address)
    assert container.gather()["device"] == "mlx5_2"


def test_the_device_may_be_below_the_interface(container: Container) -> None:
    container.device(1)
    container.device(2)
    (container.root / "sys/class/net/eth0/device/infiniband/mlx5_1").mkdir(parents=True)
    assert container.gather()["device"] == "mlx5_1"


def test_the_only_device_is_not_taken_for_that_of_each_rail(container: Container) -> None:
    container.device(1)
    assert container.gather()["device"] == "mlx5_1"
    assert container.gather("2")["problem"] == f"none of its RDMA devices mlx5_1 has the address {ADDRESS}"


def test_a_device_whose_interface_is_elsewhere_is_foreign(container: Container) -> None:
    container.device(1)
    container.device(2)
    (container.root / "sys/class/infiniband/mlx5_2/device/net/eth2").rmdir()
    found = container.gather()
    assert found["foreign"] == ["mlx5_2"]
    assert found["problem"] == f"none of its RDMA devices mlx5_1, mlx5_2 has the address {ADDRESS}"


def test_each_problem_is_one_sentence(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    assert container.gather()["problem"] == "it has no RDMA device: the node shows none"
    port = container.device(0, given=False)
    assert container.gather()["problem"] == "it has no RDMA device: none of mlx5_0 can be opened"
    write(container.root / "dev/infiniband/uverbs0", "")
    write(port / "state", "2: INIT")
    assert container.gather()["problem"] == "port 1 of mlx5_0 is INIT, not ACTIVE"
    monkeypatch.setenv("PATH", "/nonexistent")
    message = "its image has no ib_write_bw: add the package perftest to the image"
    assert container.gather()["problem"] == message
