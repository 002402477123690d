"""What the training container gets on each kind of node."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.engine.container_spec import (
    container_spec,
    memlock_shortage,
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
        "security_opts": [],
    }


def test_rocm_node_gets_its_devices_and_the_groups_that_own_them() -> None:
    spec = container_spec(report(groups={"video": 44, "render": 109, "docker": 998}), "rocm")
    assert spec.devices == ["/dev/kfd:/dev/kfd:rwm", "/dev/dri:/dev/dri:rwm"]
    assert spec.groups == ["44", "109"]
    assert spec.capabilities == ["SYS_PTRACE"]
    assert spec.security_opts == ["seccomp=unconfined"]


def test_rocm_node_without_known_groups_uses_the_images_video_group() -> None:
    assert container_spec(report(groups={"video": None, "render": None}), "rocm").groups == ["video"]


def test_cuda_node_requests_all_gpus() -> None:
    spec = container_spec(report(), "cuda")
    assert spec.device_requests == [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]
    assert spec.devices == []


def test_cuda_node_whose_engine_knows_cdi_only_asks_for_that() -> None:
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


def test_rdma_cm_alone_is_no_rdma() -> None:
    spec = container_spec(report(devices={"rdma_cm": True}), "cpu")
    assert (spec.devices, spec.capabilities) == ([], [])


def test_memlock_is_what_the_daemon_can_give() -> None:
    limited = report(memlock={"soft": 65536, "hard": 8388608, "raise_allowed": False})
    assert container_spec(limited, "cpu").ulimits == ["memlock:8388608:8388608"]
    assert "8388608 bytes" in str(memlock_shortage(limited))
    assert memlock_shortage(report()) is None
    assert memlock_shortage({**limited, "docker": None}) is None
