"""Checks of GPUs, interfaces, memory and RDMA devices: each problem names the value and what would work."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import devices as device_checks
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.node import (
    check_node,
)

from tests.unit.plugins.desired_states import wanted
from tests.unit.plugins.node_reports import SOUND, report
from tests.unit.plugins.plugin_utils.checks.findings import (
    RAILS,
    problems,
    warnings,
)


def test_accelerator_that_the_node_lacks_is_refused() -> None:
    [sentence] = problems(report(), rdm_accelerator="rocm")
    assert sentence.startswith(
        "rdm_accelerator rocm does not fit the node, which has no GPU that its driver serves"
    )
    [sentence] = problems(report(accelerator="cuda", gpus=[{}] * 8), rdm_accelerator="rocm")
    assert "which has 8 GPUs (cuda): set rdm_accelerator: cuda" in sentence
    whole = {"kfd": True, "dri": ["/dev/dri/renderD128"]}
    assert problems(report(accelerator="rocm", gpus=[{}] * 8, devices=whole), rdm_accelerator="rocm") == []


@pytest.mark.parametrize(
    ("devices", "missing"),
    [
        ({"kfd": False, "dri": ["/dev/dri/renderD128"]}, "/dev/kfd"),
        ({"kfd": True, "dri": []}, "/dev/dri"),
        ({}, "/dev/kfd, /dev/dri"),
    ],
)
def test_rocm_without_its_devices_is_refused(devices: dict[str, Any], missing: str) -> None:
    found = report(accelerator="rocm", gpus=[{}] * 8, devices=devices)
    [sentence] = problems(found, rdm_accelerator="rocm")
    assert sentence.startswith(f"rdm_accelerator rocm needs {missing}, missing here: load amdgpu")
    assert problems(found, rdm_accelerator="rocm", container_devices=[]) == []
    assert problems(found) == [], "a cpu cluster needs none of it"


def test_groups_of_the_user_that_do_not_own_the_gpus_are_a_warning() -> None:
    devices = {"kfd": True, "dri": ["/dev/dri/renderD128"], "groups": [44, 992]}
    found = report(accelerator="rocm", gpus=[{}], devices=devices)
    [sentence] = warnings(found, rdm_accelerator="rocm", container_groups=["44"])
    assert "container_groups lacks 992" in sentence
    for groups in (None, ["44", "992"], ["video"]):
        assert warnings(found, rdm_accelerator="rocm", container_groups=groups) == []


def test_cuda_without_a_way_to_its_gpus_is_refused() -> None:
    cuda = {"accelerator": "cuda", "gpus": [{}] * 8, "devices": {"nvidia": ["/dev/nvidia0"]}}
    [sentence] = problems(report(**cuda), rdm_accelerator="cuda")
    assert sentence.startswith("rdm_accelerator cuda needs NVIDIA's container toolkit, and neither")
    assert "nvidia-ctk runtime configure" in sentence
    for more in ({"nvidia_hook": True}, {"docker_nvidia": ["runtime"]}, {"docker_nvidia": ["cdi"]}):
        assert check_node(wanted(rdm_accelerator="cuda"), report(**cuda, **more)) == ([], [])
    assert problems(report(**cuda), rdm_accelerator="cuda", container_devices=[]) == []
    to_come = report(**cuda, docker=None, docker_state="absent")
    assert problems(to_come, rdm_accelerator="cuda", docker_engine_install=True) != [], (
        "the role installs the engine only"
    )
    bare = report(**{**cuda, "devices": {"nvidia": []}}, nvidia_hook=True)
    assert "there is no /dev/nvidia0 yet" in warnings(bare, rdm_accelerator="cuda")[0]


def test_unused_gpus_are_a_warning() -> None:
    found = report(accelerator="rocm", gpus=[{}] * 4)
    assert problems(found) == []
    assert "its 4 GPUs (rocm) stay unused" in warnings(found)[0]


def test_parent_interface_must_exist() -> None:
    [sentence] = problems(report(), network_parent="ib7")
    assert sentence == "network_parent ib7 is not an interface of the node: choose one of eth0, ib0, docker0"
    assert problems(report(), network_parent="ib0.100") == []
    assert problems(report(), network_parent="ib7", network_driver="bridge") == []
    assert problems(report(), network_parent="ib0, eth0", network_driver="sriov") == []
    [sentence] = problems(report(), network_parent="ib0,ib7", network_driver="sriov")
    assert sentence.startswith("network_parent ib7 is not an interface of the node")
    # Docker makes VLAN interfaces for macvlan and ipvlan, and no plugin for sriov.
    [sentence] = problems(report(), network_parent="ib0.100", network_driver="sriov")
    assert sentence.startswith("network_parent ib0.100 is not an interface of the node")


@pytest.mark.parametrize("driver", ["sriov", "macvlan"])
def test_the_sentence_of_a_rail_names_the_variable_of_rails(driver: str) -> None:
    [sentence] = problems(report(), RAILS, network_driver=driver, container_rails=["ib0", "ib7"])
    assert sentence.startswith("container_rails ib7 is not an interface of the node: choose one of eth0, ib0")


def test_low_memlock_is_refused_or_accepted_as_configured() -> None:
    limited = report(memlock={"soft": 65536, "hard": 8388608, "raise_allowed": False})
    [sentence] = problems(limited)
    assert sentence.startswith("memlock is limited to 8388608 bytes")
    assert "LimitMEMLOCK=infinity" in sentence
    assert problems(limited, container_memlock_required=False) == []
    assert warnings(limited, container_memlock_required=False) == []


def test_shared_memory_that_would_end_nccl_is_refused() -> None:
    """nccl#606: with 64 MB a training starts, and fails at the first collective."""
    small = report(shared_memory=64 << 20)
    gpus: dict[str, Any] = {"accelerator": "rocm", "slots": 8}
    words = "has 64.0 MiB, and NCCL or RCCL ends without 1.0 GiB for 8 processes: "
    found = [one for one in problems(small, **gpus) if "/dev/shm" in one]
    assert found == [
        f"/dev/shm {words}give it more (mount -o remount,size=50% /dev/shm, and the same in /etc/fstab), or "
        "set container_shm_size: 64G"
    ]
    own = [one for one in problems(small, **gpus, container_shm_size="64M") if "shm" in one]
    assert own == [f"container_shm_size {words}set it to 1G or more, such as 64G"]
    for more in ({"container_shm_size": "64G"}, {"slots": 1}, {"accelerator": "cpu"}):
        assert "shm" not in str(problems(small, **{**gpus, **more}))
    assert "shm" not in str(problems(report(shared_memory=1 << 30), **gpus))


def test_an_interface_that_the_network_cannot_be_on_is_refused() -> None:
    """The engine says `invalid argument` or `device or resource busy`, when the old container is gone."""
    address = ":".join(["80"] * 20)
    found = report(interfaces=[*SOUND["interfaces"], {"name": "ib1", "mac": address, "addresses": []}])
    bond = {"bond": "bond0", "children": [], "siblings": [], "pci": "0000:41:00.0", "name": "eth0"}
    found["fabric_interfaces"] = [{**bond, "iommu": ""}]
    cases = {
        "lo": "is the loopback interface, which reaches no other node: choose one of eth0, ib0, ",
        "ib1": "is InfiniBand, and the kernel puts macvlan on Ethernet only: set network_driver: sriov, or",
        "ib1.5": "is InfiniBand, and the kernel puts macvlan on Ethernet only",
        "eth0": "is a port of the bond bond0, which has all that arrives there: set it to bond0",
    }
    for name, words in cases.items():
        [sentence] = problems(found, network_parent=name)
        assert sentence.startswith(f"network_parent {name} {words}"), sentence
    assert problems(found, network_parent="ib0") == []
    [sentence] = problems(report(), network_driver="sriov", network_parent="lo", plugin="rdm-sriov")
    assert "is the loopback interface" in sentence


def test_rdma_devices_that_the_container_does_not_get_are_named_until_the_user_chooses() -> None:
    found = report(
        infiniband=[{"name": "mlx5_0", "netdevs": ["ib0"]}, {"name": "mlx5_1", "netdevs": ["ib1"]}]
    )
    (sentence,) = warnings(found)
    assert "gets the RDMA devices of ib0, and not mlx5_1: set container_rdma to all" in sentence
    assert warnings(found, container_rdma="interface") == warnings(found, container_rdma="all") == []
    # Without a parent there is none to choose by.
    assert warnings(found, network_driver="bridge") == []


def test_rdma_devices_that_stay_out_of_every_container_are_refused() -> None:
    devices = [{"name": "mlx5_0", "netdevs": ["ib0"], "char_devices": ["/dev/infiniband/uverbs0"]}]
    exclusive = {"netns_mode": "exclusive", "ofed": False}
    (sentence,) = problems(report(infiniband=devices, rdma=exclusive))
    assert "the mode exclusive of RDMA devices in network namespaces keeps them from every" in sentence
    assert "rdma system set netns shared, while no container runs" in sentence
    assert problems(report(rdma=exclusive)) == [], "no container is to get one"
    assert problems(report(infiniband=devices, rdma=exclusive), container_devices=[]) == []
    assert problems(report(infiniband=devices, rdma={**exclusive, "netns_mode": "shared"})) == []


def test_devices_that_the_plugin_can_move_are_accepted_in_exclusive_mode() -> None:
    def refused(infiniband: bool = False, systemd: bool = True, run_as: str = "auto", **more: Any) -> str:
        found = report(
            infiniband=[{"name": "mlx5_0", "netdevs": ["ib0"], "char_devices": ["/dev/infiniband/uverbs0"]}],
            rdma={"netns_mode": "exclusive", "ofed": False},
            fabric_interfaces=[{"name": "ib0", "infiniband": infiniband}],
            network_plugin={"systemd": systemd},
        )
        plan = {"network_driver": "sriov", "plugin": "rdm-sriov", "sriov_run_as": run_as}
        findings = Findings([], [])
        device_checks.rdma(wanted(**{**plan, **more}), found, findings)
        return " ".join(problem.sentence for problem in findings.problems)

    assert refused() == ""
    assert "when an InfiniBand device moves to one, the kernel takes its interface away" in refused(True)
    assert "keeps those of ib0 from every container" in refused(True)
    assert "rdma system set netns shared, while no container runs" in refused(True)
    for words in (refused(systemd=False), refused(run_as="container")):
        assert "needs rdm-sriov as a systemd unit: in a container it sees" in words
        assert "set sriov_run_as: unit" in words
    assert refused(systemd=False, run_as="unit") == "", "the module says why there is no unit"
    # All devices of a node, or devices unknown before the start, cannot be moved to a container.
    others: tuple[dict[str, Any], ...] = ({"container_rdma": "all"}, {"plugin": "upstream"})
    for more in others:
        assert "rdm-sriov alone moves one there, its VF's" in refused(**more)
