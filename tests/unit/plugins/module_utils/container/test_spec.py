"""What the training container gets on each kind of node."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.container.spec import (
    container_spec,
    memlock_shortage,
    rdma_devices,
)

from tests.unit.plugins.node_reports import report

INFINIBAND = [
    {"name": "mlx5_0", "char_devices": ["/dev/infiniband/uverbs0", "/dev/infiniband/umad0"]},
    {"name": "mlx5_1", "char_devices": ["/dev/infiniband/uverbs1"]},
    {"name": "mlx5_2", "char_devices": []},
]


def test_cpu_node_gets_nothing_special() -> None:
    assert container_spec(report(), "cpu")._asdict() == {
        "devices": [],
        "groups": [],
        "device_requests": [],
        "ulimits": ["memlock:-1:-1"],
        "capabilities": [],
        "shm_size": "64G",
    }


@pytest.mark.parametrize(
    ("node", "size"),
    [(0, "1G"), (64 << 20, "1G"), (12 << 30, "8G"), (503 << 30, "256G"), (512 << 30, "512G")],
)
def test_a_container_with_shared_memory_of_its_own_gets_about_the_nodes(node: int, size: str) -> None:
    assert container_spec(report(shared_memory=node), "rocm").shm_size == size
    assert container_spec(report(shared_memory=node + 4096), "rocm").shm_size == size


def test_rocm_node_gets_its_devices_and_the_groups_that_own_them() -> None:
    spec = container_spec(report(groups={"video": 44, "render": 109, "docker": 998}), "rocm")
    assert spec.devices == ["/dev/kfd:/dev/kfd:rwm", "/dev/dri:/dev/dri:rwm"]
    assert spec.groups == ["44", "109"]
    assert spec.capabilities == []


def test_rocm_node_without_known_groups_uses_the_images_video_group() -> None:
    assert container_spec(report(groups={"video": None, "render": None}), "rocm").groups == ["video"]


def test_cuda_node_requests_all_gpus() -> None:
    spec = container_spec(report(), "cuda")
    assert spec.device_requests == [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]
    assert spec.devices == []


def test_cuda_node_whose_engine_knows_cdi_only_requests_that() -> None:
    cdi = [{"driver": "cdi", "count": 0, "device_ids": ["nvidia.com/gpu=all"]}]
    assert container_spec(report(docker_nvidia=["cdi"]), "cuda").device_requests == cdi
    for found in (report(docker_nvidia=["cdi"], nvidia_hook=True), report(docker_nvidia=["runtime", "cdi"])):
        assert container_spec(found, "cuda").device_requests[0]["driver"] == "nvidia"


def test_rocm_node_gets_the_groups_that_own_its_devices() -> None:
    found = report(groups={"video": 44, "render": 109}, devices={"groups": [44, 992]})
    assert container_spec(found, "rocm").groups == ["44", "109", "992"]


@pytest.mark.parametrize("accelerator", ["rocm", "cuda", "cpu"])
def test_rdma_devices_go_with_every_accelerator(accelerator: str) -> None:
    spec = container_spec(report(infiniband=INFINIBAND, devices={"rdma_cm": True}), accelerator)
    assert spec.devices[-4:] == [
        f"/dev/infiniband/{name}:/dev/infiniband/{name}:rwm"
        for name in ("uverbs0", "umad0", "uverbs1", "rdma_cm")
    ]
    assert "IPC_LOCK" in spec.capabilities


def rdma_device(pci: str, *netdevs: str, virtual: bool = False, number: int = 0) -> dict[str, Any]:
    name = f"mlx5_{number}"
    paths = [f"/dev/infiniband/uverbs{number}"]
    return {
        "name": name,
        "pci": pci,
        "virtual": virtual,
        "netdevs": list(netdevs),
        "char_devices": paths,
    }


TWO_ADAPTERS = report(
    infiniband=[
        rdma_device("0000:01:00.0", "ib0", number=0),
        # A VF whose interface is in a container.
        rdma_device("0000:01:00.2", virtual=True, number=1),
        rdma_device("0000:02:00.0", "ib1", number=2),
        rdma_device("0000:02:00.2", "ib1v0", virtual=True, number=3),
    ],
    sriov=[
        {"pf": "ib0", "pci": "0000:01:00.0", "vfs": [{"pci": "0000:01:00.2", "netdev": ""}]},
        {"pf": "ib1", "pci": "0000:02:00.0", "vfs": [{"pci": "0000:02:00.2", "netdev": "ib1v0"}]},
    ],
)


@pytest.mark.parametrize(
    ("interface", "numbers", "left_out"),
    [
        ("ib0", [0, 1], ["mlx5_2", "mlx5_3"]),
        ("ib0.8001", [0, 1], ["mlx5_2", "mlx5_3"]),
        ("ib1", [2, 3], ["mlx5_0", "mlx5_1"]),
        ("ib1v0", [3], ["mlx5_0", "mlx5_1", "mlx5_2"]),
        ("eth0", [], ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]),
        ("", [0, 1, 2, 3], []),
    ],
)
def test_rdma_devices_are_those_of_the_containers_interface(
    interface: str, numbers: list[int], left_out: list[str]
) -> None:
    expected = [f"/dev/infiniband/uverbs{number}" for number in numbers]
    assert rdma_devices(TWO_ADAPTERS, interface) == (expected, left_out)
    spec = container_spec(TWO_ADAPTERS, "cpu", interface)
    assert spec.devices == [f"{path}:{path}:rwm" for path in expected]
    assert ("IPC_LOCK" in spec.capabilities) == bool(expected)


def test_rdma_cm_alone_does_not_count_as_rdma() -> None:
    spec = container_spec(report(devices={"rdma_cm": True}), "cpu")
    assert (spec.devices, spec.capabilities) == ([], [])


def test_memlock_is_limited_by_the_daemon() -> None:
    limited = report(memlock={"soft": 65536, "hard": 8388608, "raise_allowed": False})
    assert container_spec(limited, "cpu").ulimits == ["memlock:8388608:8388608"]
    assert "8388608 bytes" in str(memlock_shortage(limited))
    assert memlock_shortage(report()) is None
    assert memlock_shortage(report(docker=None, memlock=limited["memlock"])) is None
