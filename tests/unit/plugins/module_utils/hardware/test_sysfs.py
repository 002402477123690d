"""The readers of sysfs and device nodes, on trees of an MI250 node, a CUDA node and a bare one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.facts import Gpu
from ansible_collections.rdm.provision.plugins.module_utils.hardware import sysfs
from ansible_collections.rdm.provision.plugins.module_utils.sriov import observed_vfs

from tests.fixtures.sysfs.build import build

BARE_NODES = {"kfd": False, "dri": [], "nvidia": [], "rdma_cm": False, "groups": []}


class Node:
    """A node laid out from its listing, with the roots as the readers take them."""

    def __init__(self, name: str, directory: Path) -> None:
        self.tree = build(name, directory)
        self.sys = str(self.tree / "sys")
        self.dev = str(self.tree / "dev")


@pytest.fixture
def mi250(tmp_path: Path) -> Node:
    return Node("mi250", tmp_path)


@pytest.fixture
def cuda(tmp_path: Path) -> Node:
    return Node("cuda", tmp_path)


@pytest.fixture
def cpu(tmp_path: Path) -> Node:
    return Node("cpu", tmp_path)


def test_mi250_counts_each_die_as_a_gpu(mi250: Node) -> None:
    gpus = sysfs.gpus(mi250.sys)
    assert [gpu["pci"][5:7] for gpu in gpus] == ["29", "2c", "2f", "32", "ad", "b0", "b3", "b6"]
    assert gpus[0] == {
        "vendor": "amd",
        "pci": "0000:29:00.0",
        "driver": "amdgpu",
        "render_node": "/dev/dri/renderD128",
    }
    assert sysfs.accelerator(gpus) == "rocm"
    assert sysfs.unserved(gpus) == []


def test_mi250_has_the_device_nodes_of_rocm(mi250: Node) -> None:
    nodes = sysfs.device_nodes(mi250.dev)
    assert nodes["kfd"]
    assert nodes["rdma_cm"]
    assert nodes["nvidia"] == []
    assert nodes["dri"][0] == "/dev/dri/card0"
    assert nodes["dri"][-1] == "/dev/dri/renderD135"


def test_groups_that_own_amd_gpus(mi250: Node) -> None:
    os.chown(f"{mi250.dev}/kfd", -1, 44)
    os.chown(f"{mi250.dev}/dri/renderD128", -1, 992)
    os.chown(f"{mi250.dev}/dri/card0", -1, 7)
    assert sysfs.device_nodes(mi250.dev)["groups"] == [44, 992]


def test_amd_graphics_without_compute_is_no_accelerator(mi250: Node) -> None:
    console = mi250.tree / "sys/bus/pci/devices/0000:c3:00.0/vendor"
    console.write_text("0x1002\n")
    assert len(sysfs.gpus(mi250.sys)) == 8


def test_gpus_without_their_driver_are_seen_but_are_no_accelerator(mi250: Node) -> None:
    for device in mi250.tree.glob("sys/bus/pci/devices/*/driver"):
        device.unlink()
    for gpu_id in mi250.tree.glob("sys/class/kfd/kfd/topology/nodes/*/gpu_id"):
        gpu_id.unlink()
    gpus = sysfs.gpus(mi250.sys)
    assert len(gpus) == len(sysfs.unserved(gpus)) == 8
    assert sysfs.accelerator(gpus) == "cpu"


def test_the_majority_of_mixed_gpus_decides() -> None:
    amd, nvidia, given_away = (Gpu(driver=driver) for driver in ("amdgpu", "nvidia", "vfio-pci"))
    assert sysfs.accelerator([amd, amd, nvidia]) == "rocm"
    assert sysfs.accelerator([amd, nvidia]) == "cuda"
    assert sysfs.accelerator([amd, given_away]) == "rocm"


def test_mi250_infiniband(mi250: Node) -> None:
    devices = sysfs.infiniband(mi250.sys, mi250.dev)
    assert [device["name"] for device in devices] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4"]
    assert [device["virtual"] for device in devices] == [False, True, True, True, True]
    assert devices[0] == {
        "name": "mlx5_0",
        "node_guid": "b8ce:f603:00a1:b2c0",
        "firmware": "20.35.2000",
        "board_id": "MT_0000000223",
        "type": "",
        "driver": "",
        "driver_version": "",
        "pci": "0000:41:00.0",
        "virtual": False,
        "char_devices": ["/dev/infiniband/uverbs0", "/dev/infiniband/umad0", "/dev/infiniband/issm0"],
        "netdevs": ["ib0"],
        "ports": [
            {
                "port": 1,
                "state": "ACTIVE",
                "physical_state": "LinkUp",
                "rate": "200 Gb/sec (4X HDR)",
                "link_layer": "InfiniBand",
                "lid": 26,
                "sm_lid": 0,
            }
        ],
    }


def test_character_devices_follow_ibdev_and_not_their_number(mi250: Node) -> None:
    verbs = mi250.tree / "sys/class/infiniband_verbs"
    (verbs / "uverbs0/ibdev").write_text("mlx5_3\n")
    (verbs / "uverbs3/ibdev").write_text("mlx5_0\n")
    devices = {device["name"]: device for device in sysfs.infiniband(mi250.sys, mi250.dev)}
    assert devices["mlx5_0"]["char_devices"][0] == "/dev/infiniband/uverbs3"
    assert devices["mlx5_3"]["char_devices"][0] == "/dev/infiniband/uverbs0"


def test_character_devices_without_a_node_are_left_out(mi250: Node) -> None:
    (mi250.tree / "dev/infiniband/umad0").unlink()
    devices = sysfs.infiniband(mi250.sys, mi250.dev)
    assert devices[0]["char_devices"] == ["/dev/infiniband/uverbs0", "/dev/infiniband/issm0"]


def test_mi250_physical_and_virtual_functions(mi250: Node) -> None:
    (pf,) = observed_vfs.facts(mi250.sys)
    assert (pf["pf"], pf["pci"]) == ("ib0", "0000:41:00.0")
    assert (pf["total_vfs"], pf["num_vfs"]) == (8, 4)
    assert [vf["index"] for vf in pf["vfs"]] == [0, 1, 2, 3]
    first = pf["vfs"][0]
    assert (first["pci"], first["netdev"]) == ("0000:41:00.1", "ib1")
    assert first["mac"] == "00:00:08:41:fe:80:00:00:00:00:00:00:00:22:33:44:77:66:55:01"
    assert (pf["vfs"][3]["netdev"], pf["vfs"][3]["mac"]) == ("", "")


def test_an_ipoib_child_is_no_physical_function_but_shares_one(mi250: Node) -> None:
    for directory in ("sys/class/net/ib0.8001", "sys/bus/pci/devices/0000:41:00.0/net/ib0.8001"):
        (mi250.tree / directory).mkdir()
    child = mi250.tree / "sys/class/net/ib0.8001"
    (child / "device").symlink_to("../../../bus/pci/devices/0000:41:00.0")
    (child / "parent").write_text("ib0\n")
    assert [pf["pf"] for pf in observed_vfs.facts(mi250.sys)] == ["ib0"]
    assert sysfs.siblings("ib0", mi250.sys) == ["ib0.8001"]


def test_cuda_leaves_out_nvswitch(cuda: Node) -> None:
    gpus = sysfs.gpus(cuda.sys)
    assert len(gpus) == 8
    assert {(gpu["vendor"], gpu["driver"]) for gpu in gpus} == {("nvidia", "nvidia")}
    assert sysfs.accelerator(gpus) == "cuda"
    assert sysfs.device_nodes(cuda.dev)["nvidia"] == [f"/dev/nvidia{number}" for number in range(8)]


def test_cuda_roce(cuda: Node) -> None:
    first, second = sysfs.infiniband(cuda.sys, cuda.dev)
    assert first["netdevs"] == ["enp161s0f0np0"]
    assert first["char_devices"] == ["/dev/infiniband/uverbs0"]
    assert first["ports"][0]["link_layer"] == "Ethernet"
    assert (second["ports"][0]["state"], second["ports"][0]["physical_state"]) == ("DOWN", "Disabled")
    assert [(pf["pf"], pf["num_vfs"]) for pf in observed_vfs.facts(cuda.sys)] == [
        ("enp161s0f0np0", 0),
        ("enp161s0f1np1", 0),
    ]


def test_cpu_node(cpu: Node) -> None:
    assert sysfs.gpus(cpu.sys) == sysfs.infiniband(cpu.sys, cpu.dev) == observed_vfs.facts(cpu.sys) == []
    assert sysfs.accelerator([]) == "cpu"
    assert sysfs.device_nodes(cpu.dev) == BARE_NODES
    assert sysfs.netdevs(cpu.sys) == [
        {"name": "eth0", "mac": "52:54:00:12:34:56"},
        {"name": "lo", "mac": "00:00:00:00:00:00"},
    ]


@pytest.mark.parametrize("root", ["", "missing"])
def test_empty_tree_reads_as_empty(tmp_path: Path, root: str) -> None:
    empty = str(tmp_path / root)
    assert sysfs.gpus(empty) == []
    assert sysfs.infiniband(empty, empty) == []
    assert observed_vfs.facts(empty) == []
    assert sysfs.netdevs(empty) == []
    assert sysfs.siblings("ib0", empty) == []
    assert sysfs.device_nodes(empty) == BARE_NODES


def test_gpu_architectures_for_the_torch_build_are_listed(tmp_path: Path) -> None:
    assert sysfs.gpu_driver(str(tmp_path)) == {"nvidia": "", "amd": []}
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("550.54.15\n")
    # A processor, two MI300X and an MI250.
    for number, version in enumerate((0, 90402, 90402, 90010)):
        node = tmp_path / "class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "properties").write_text(f"simd_count 4\ngfx_target_version {version}\n")
    assert sysfs.gpu_driver(str(tmp_path)) == {"nvidia": "550.54.15", "amd": ["gfx90a", "gfx942"]}
