"""The training container gets one VF of the network plugin, and its devices, on a real engine.

The VFs are the lab's stand-ins, with PCI addresses; a sysfs tree shows their RDMA devices.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.container import vfs
from ansible_collections.rdm.provision.plugins.module_utils.container.request import ends
from ansible_collections.rdm.provision.plugins.module_utils.container.swap import Change, Steps
from ansible_collections.rdm.provision.plugins.module_utils.container.vfs import ContainerVfs
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import remove_container
from ansible_collections.rdm.provision.plugins.module_utils.state import state_file
from ansible_collections.rdm.provision.plugins.modules import docker_owned
from ansible_collections.rdm.provision.rdm_sriov import rdma_namespace
from ansible_collections.rdm.provision.rdm_sriov.vfs import VfProblem

from tests.integration.conftest import BUSYBOX
from tests.integration.container_module import UNSET
from tests.integration.container_module import up as run_with
from tests.integration.engine import private_engine
from tests.integration.sriov_node import NETWORK, VFS, Node, serving
from tests.printed_hints import follow
from tests.unit.plugins.modules.running import Failed, run_module

MY_IP = "192.169.16.100"
DEVICES = Path("/dev/infiniband")
FIRST = os.getpid() * 10
"""Number of the first uverbs of these tests, which Docker looks up in the machine's /dev."""


class Fabric(Node):
    """The plugin, and a sysfs tree in which each of its VFs has an RDMA device."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.sys = engine.root / "sys"
        self.number([*range(VFS)])

    def number(self, order: list[int]) -> None:
        """Assign these RDMA devices to the VFs, as after a boot."""
        shutil.rmtree(self.sys, ignore_errors=True)
        for index, number in enumerate([VFS, *order]):
            pci = self.sys / f"bus/pci/devices/0000:41:00.{index}"
            pci.mkdir(parents=True)
            if index:
                (pci / "physfn").symlink_to("../0000:41:00.0")
            device = self.sys / f"class/infiniband/mlx5_{index}"
            device.mkdir(parents=True)
            (device / "device").symlink_to(pci)
            verbs = self.sys / f"class/infiniband_verbs/uverbs{FIRST + number}"
            verbs.mkdir(parents=True)
            (verbs / "ibdev").write_text(f"mlx5_{index}\n")

    def set_exclusive(self) -> None:
        """Set RDMA's mode to exclusive, with no device moved so far."""
        mode = self.sys / "module/ib_core/parameters/netns_mode"
        mode.parent.mkdir(parents=True)
        mode.write_text("N\n")

    def move(self, index: int) -> None:
        """Move a VF's RDMA device to its container's namespace, as the kernel shows it then."""
        name = f"mlx5_{index + 1}"
        verbs = self.sys / "class/infiniband_verbs"
        entry = next(one for one in verbs.iterdir() if (one / "ibdev").read_text().strip() == name)
        (entry / "device").symlink_to(self.sys / f"bus/pci/devices/0000:41:00.{index + 1}")
        shutil.rmtree(self.sys / "class/infiniband" / name)

    @property
    def kept(self) -> dict[str, Any]:
        """The plugin's state."""
        kept: dict[str, Any] = json.loads((self.state / "state.json").read_text())
        return kept


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    """A node with an engine, the plugin and a network."""
    existed = DEVICES.exists()
    DEVICES.mkdir(exist_ok=True)
    ours = [DEVICES / f"uverbs{FIRST + number}" for number in range(VFS + 1)]
    with private_engine() as engine:
        node = Fabric(engine)
        node.program = Path(__file__).with_name("addressed_vfs.py")
        labels = ["--label", "rdm.provision.cluster=c", "--label", "rdm.provision.role=network"]
        try:
            for path in ours:
                os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
            with serving(node, *labels):
                yield node
        finally:
            for path in ours:
                path.unlink(missing_ok=True)
            if not existed:
                # Another run may have its devices there.
                with contextlib.suppress(OSError):
                    DEVICES.rmdir()


@pytest.fixture
def api(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerAPI]:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{fabric.engine.socket}")
    readers = (
        vfs.devices,
        vfs.still_there,
        vfs.stayed_behind,
    )
    for read in readers:
        monkeypatch.setattr(vfs, read.__name__, functools.partial(read, root=str(fabric.sys)))
    fabric.number([*range(VFS)])
    yield fabric.engine.api
    for one in fabric.engine.api.get("/containers/json", all=True):
        remove_container(fabric.engine.api, one["Id"], volumes=True)
    assert fabric.promised() == {}, "a VF leaked"


def wanted_of(fabric: Fabric) -> dict[str, Any]:
    return {
        "name": "rdm",
        "cluster": "c",
        "image": BUSYBOX,
        "command": ["sleep", "infinity"],
        "hostname": "n1",
        "network": NETWORK,
        "my_ip": MY_IP,
        "plugin_socket": str(fabric.socket),
        "stop_timeout": 0,
    }


def up(fabric: Fabric, *, check: bool = False, **other: Any) -> dict[str, Any]:
    return run_with(wanted_of(fabric), check=check, **other)


def found(api: DockerAPI, name: str = "rdm") -> dict[str, Any]:
    one: dict[str, Any] = api.get(f"/containers/{name}/json")
    return one


def uverbs(api: DockerAPI, name: str = "rdm") -> list[int]:
    """The numbers of a container's RDMA devices, counted from the first of these tests."""
    paths = [one["PathInContainer"] for one in found(api, name)["HostConfig"]["Devices"]]
    return [int(path.partition("uverbs")[2]) - FIRST for path in paths]


def has(fabric: Fabric, name: str = "rdm") -> int:
    """The number of a container's VF."""
    key = vfs.held(str(fabric.socket), found(fabric.engine.api, name), NETWORK)
    return int(key.rpartition(".")[2]) - 1


def test_container_gets_its_vf_and_only_its_devices(fabric: Fabric, api: DockerAPI) -> None:
    assert up(fabric, check=True)["actions"] == ["make"]
    assert fabric.kept["reserved"] == []
    assert up(fabric)["actions"] == ["make"]
    made = found(api)
    assert uverbs(api) == [has(fabric)]
    assert made["HostConfig"]["CapAdd"] == ["IPC_LOCK"]
    assert fabric.address("rdm") == made["NetworkSettings"]["Networks"][NETWORK]["MacAddress"]
    kept = fabric.kept
    for check in (True, False):
        again = up(fabric, check=check)
        assert (again["changed"], again["diff"]["before"]) == (False, again["diff"]["after"])
    assert (found(api)["Id"], fabric.kept) == (made["Id"], kept)
    fabric.docker("restart", "-t", "0", "rdm")
    assert not up(fabric)["changed"]


def test_container_gets_no_devices_where_the_user_sets_them(fabric: Fabric, api: DockerAPI) -> None:
    up(fabric, rdma=False, devices=["/dev/zero"])
    assert [one["PathOnHost"] for one in found(api)["HostConfig"]["Devices"]] == ["/dev/zero"]
    assert not up(fabric, rdma=False, devices=["/dev/zero"])["changed"]


def test_containers_that_are_made_at_once_share_nothing(fabric: Fabric, api: DockerAPI) -> None:
    def make(number: int) -> None:
        """What the module does; its own frame is one to a process."""
        mine = {"name": f"c{number}", "my_ip": f"192.169.16.{100 + number}"}
        wanted = {**UNSET, "ready_timeout": 240, **wanted_of(fabric), **mine}
        own = ContainerVfs(api, str(fabric.socket), ends(wanted))
        wanted["vfs"] = own.settings(None, {}, check=False)
        Change(api, wanted, None, own).make(Steps(["make"], None))

    with ThreadPoolExecutor(VFS) as pool:
        list(pool.map(make, range(VFS)))
    names = [f"c{number}" for number in range(VFS)]
    assert [uverbs(api, name) for name in names] == [[has(fabric, name)] for name in names]
    assert sorted(has(fabric, name) for name in names) == [*range(VFS)]
    with pytest.raises(Failed, match=f"no virtual function of {fabric.parent} is free"):
        up(fabric, my_ip="192.169.16.200")


def test_a_replacement_gets_the_same_vf(fabric: Fabric, api: DockerAPI) -> None:
    fabric.run("other", "--ip", "192.169.16.99")
    up(fabric)
    before = has(fabric), found(api)["Id"]
    fabric.remove("other")
    for env in ({"A": "1"}, {"A": "2"}):
        assert up(fabric, env=env)["actions"] == ["replace"]
        assert uverbs(api) == [has(fabric)] == [before[0]]
    assert found(api)["Id"] != before[1]


def test_devices_that_a_boot_renumbered_are_found_and_repaired(
    fabric: Fabric, api: DockerAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = Path("/run/docker/plugins")
    assert fabric.socket.parent == plugins  # where the state file finds it, by the driver's name
    watch: dict[str, Any] = {
        **{name: [] for name in ("config_dirs", "vfs", "images", "archives", "users")},
        **{"cluster": "c", "job_directory": "", "system": False, "paths": {}, "plugin": {}},
    }

    def gather() -> state_file.Found:
        return state_file.observe(watch, "hardware", api, sysfs_root=str(fabric.sys))

    up(fabric)
    seen = gather()
    assert state_file.drift(seen, gather()) == {}
    mine = has(fabric)
    # As after a boot: the devices came up in another order.
    fabric.number([*reversed(range(VFS))])
    now = VFS - 1 - mine
    why = state_file.drift(seen, gather())
    sentence = (
        f"the container rdm (RDMA devices on {NETWORK}) is uverbs{FIRST + now}, not uverbs{FIRST + mine}"
    )
    assert why == {"container": [sentence]}
    predicted = up(fabric, check=True)
    assert (predicted["actions"], uverbs(api)) == (["replace"], [mine])
    assert set(predicted["diff"]["after"]) - {"exists", "running"} == {"vfs"}
    assert up(fabric)["actions"] == ["replace"]
    assert (has(fabric), uverbs(api)) == (mine, [now])
    assert not up(fabric)["changed"]


def test_a_device_that_its_move_renamed_recreates_the_container(
    fabric: Fabric, api: DockerAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(fabric)
    before, mine = found(api)["Id"], has(fabric)

    def move(*_: Any) -> None:
        """What the kernel does: its programs' name of the device is another one then."""
        fabric.number([*reversed(range(VFS))])

    monkeypatch.setattr(rdma_namespace, "printed", move)
    fabric.set_exclusive()
    namespaces = rdma_namespace.RdmaNamespaces(str(fabric.sys), str(fabric.engine.root / "netns"))
    with pytest.raises(VfProblem, match="for programs since it moved, and was uverbs") as caught:
        namespaces.lend(f"0000:41:00.{mine + 1}", True, "/proc/self/ns/net")
    assert follow(str(caught.value), "up", lambda _: up(fabric))["actions"] == ["replace"]
    assert found(api)["Id"] != before
    assert uverbs(api) == [VFS - 1 - has(fabric)]
    assert not up(fabric)["changed"]


def test_old_container_is_restored_if_its_successor_lacks_its_rdma_device(
    fabric: Fabric, api: DockerAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(fabric)
    before = found(api)["Id"]
    fabric.set_exclusive()
    monkeypatch.setattr(vfs, "_MOVES_S", 0.0)
    with pytest.raises(Failed, match=r"did not move to its container.* of another, which runs again"):
        up(fabric, env={"A": "1"})
    after = found(api)
    assert (after["Id"], after["State"]["Running"]) == (before, True)
    assert after["HostConfig"]["RestartPolicy"]["Name"] == "always"
    assert [one["Names"] for one in api.get("/containers/json", all=True)] == [["/rdm"]]


def test_a_container_whose_device_stayed_on_the_node_is_started_again(
    fabric: Fabric, api: DockerAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(fabric)
    before = found(api)
    fabric.set_exclusive()
    predicted = up(fabric, check=True)
    assert (predicted["changed"], predicted["actions"]) == (True, ["restart"])
    # The cause still exists: it is reported, and the next run retries.
    with monkeypatch.context() as patch:
        patch.setattr(vfs, "_MOVES_S", 0.0)
        with pytest.raises(Failed, match="did not move to its container: journalctl -u rdm-sriov"):
            up(fabric)
    confirm = ContainerVfs.confirm

    def retried(self: Any, now: Any) -> None:
        fabric.move(has(fabric))
        confirm(self, now)

    with monkeypatch.context() as patch:
        patch.setattr(ContainerVfs, "confirm", retried)
        assert up(fabric)["actions"] == ["restart"]
    assert found(api)["Id"] == before["Id"]
    assert found(api)["State"]["StartedAt"] > before["State"]["StartedAt"]
    assert not up(fabric)["changed"]


def test_stopped_container_is_started_with_its_devices(fabric: Fabric, api: DockerAPI) -> None:
    up(fabric)
    mine = has(fabric)
    fabric.docker("stop", "-t", "0", "rdm")
    assert up(fabric, check=True)["actions"] == ["start"]
    assert up(fabric)["actions"] == ["start"]
    assert (has(fabric), uverbs(api)) == (mine, [mine])
    fabric.docker("stop", "-t", "0", "rdm")
    fabric.number([*reversed(range(VFS))])
    assert up(fabric)["actions"] == ["replace"]
    assert (has(fabric), uverbs(api)) == (mine, [VFS - 1 - mine])


def test_foreign_use_of_a_vf_is_reported_and_the_next_run_repairs_it(
    fabric: Fabric, api: DockerAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(fabric)
    for number in range(VFS - 1):
        fabric.run(f"c{number}")
    hold = ContainerVfs.hold

    def late(self: Any) -> None:
        fabric.run("thief")
        hold(self)

    with monkeypatch.context() as patch:
        patch.setattr(ContainerVfs, "hold", late)
        with pytest.raises(Failed, match="whose RDMA devices this container was made with, is another"):
            up(fabric, env={"A": "1"})
    assert not fabric.running("rdm")
    fabric.remove("thief")
    up(fabric, env={"A": "1"})
    assert uverbs(api) == [has(fabric)]
    assert not up(fabric, env={"A": "1"})["changed"]


def test_stopped_container_does_not_start_with_the_devices_of_another(fabric: Fabric, api: DockerAPI) -> None:
    up(fabric)
    mine = has(fabric)
    fabric.docker("stop", "-t", "0", "rdm")
    others = [f"c{number}" for number in range(VFS)]
    for name in others:
        fabric.run(name)
    fabric.remove(*(name for name in others if has(fabric, name) != mine))
    with pytest.raises(RuntimeError, match="is another container's now, or gone") as caught:
        fabric.docker("start", "rdm")
    assert follow(str(caught.value), "up", lambda _: up(fabric))["actions"] == ["replace"]
    assert uverbs(api) == [has(fabric)] != [mine]
    assert not up(fabric)["changed"]
    # A container started by hand with the same address requests no VF and gets any.
    fabric.remove("rdm")
    fabric.run("by-hand", "--ip", MY_IP)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("class/infiniband/*_[1-7]", "must have one, since its physical function 0000:41:00.0 has mlx5_0"),
        ("class/infiniband_verbs/*", "cannot be used from programs: load the module ib_uverbs"),
    ],
)
def test_unknown_devices_fail_before_anything_is_created(
    fabric: Fabric, api: DockerAPI, broken: str, message: str
) -> None:
    for path in fabric.sys.glob(broken):
        shutil.rmtree(path)
    with pytest.raises(Failed, match=message):
        up(fabric)
    assert api.get("/containers/json", all=True) == []


def test_no_container_is_created_without_the_plugin(fabric: Fabric, api: DockerAPI) -> None:
    with pytest.raises(Failed, match=r"nowhere\.sock does not answer: No such file or directory"):
        up(fabric, plugin_socket="/run/docker/plugins/nowhere.sock")
    assert api.get("/containers/json", all=True) == []


def test_removing_the_container_frees_its_vf(fabric: Fabric, api: DockerAPI) -> None:
    up(fabric)
    run_module(docker_owned, {"cluster": "c", "role": "container", "stop_timeout": 0})
    assert (fabric.promised(), fabric.kept["reserved"]) == ({}, [])
