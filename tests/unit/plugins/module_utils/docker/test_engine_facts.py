"""The engine's answers, converted to facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker import engine_facts

CONTAINERS: list[dict[str, Any]] = [
    {
        "Id": "c1" * 32,
        "Names": ["/other/alias", "/rdm"],
        "Image": "rocm/pytorch:latest",
        "ImageID": "sha256:aa",
        "State": "running",
        "Labels": {"rdm.provision.cluster": "rdm", "rdm.provision.role": "container"},
        "NetworkSettings": {"Networks": {"ibnet": {"NetworkID": "n1", "IPAddress": "192.169.16.100"}}},
        "Mounts": [
            {"Destination": "/x", "Source": "/y"},
            {"Destination": "/jobs", "Source": "/var/lib/rdm/rdm"},
        ],
    },
    {
        "Id": "c2" * 32,
        "Names": ["/stopped"],
        "Mounts": [{"Destination": "/jobs", "Source": "/somebody/elses"}],
        "NetworkSettings": {
            "Networks": {
                "ibnet": {"NetworkID": "", "IPAMConfig": {"IPv4Address": "192.169.16.7"}, "IPAddress": ""},
                "bridge": None,
            }
        },
    },
    {"Id": "c3" * 32, "Names": None, "NetworkSettings": None},
]

NETWORKS: list[dict[str, Any]] = [
    {
        "Id": "n1",
        "Name": "ibnet",
        "Driver": "sriov",
        "Scope": "local",
        "Internal": False,
        "IPAM": {"Config": [{"Subnet": "192.169.16.0/24", "Gateway": "192.169.16.1"}]},
        "Options": {"netdevice": "ib0"},
        "Labels": {"rdm.provision.cluster": "rdm"},
    },
    {"Id": "n2", "Name": "none", "Driver": "null", "IPAM": {"Config": None}, "Options": None, "Labels": None},
]


def test_networks_name_attached_containers_also_stopped_ones() -> None:
    ibnet, none = engine_facts.networks(NETWORKS, CONTAINERS)
    assert ibnet["containers"] == ["rdm", "stopped"]
    assert ibnet["subnets"] == [{"subnet": "192.169.16.0/24", "gateway": "192.169.16.1"}]
    assert (ibnet["driver"], ibnet["options"]) == ("sriov", {"netdevice": "ib0"})
    assert (none["subnets"], none["options"], none["labels"], none["containers"]) == ([], {}, {}, [])


def test_containers() -> None:
    running, stopped, bare = engine_facts.containers(CONTAINERS)
    assert (running["name"], running["networks"]) == ("rdm", {"ibnet": "192.169.16.100"})
    assert stopped["networks"] == {"ibnet": "192.169.16.7", "bridge": ""}
    assert [one["job_directory"] for one in (running, stopped, bare)] == ["/var/lib/rdm/rdm", "", ""]
    assert (bare["name"], bare["labels"], bare["networks"]) == ("c3c3c3c3c3c3", {}, {})


def test_images_without_a_tag() -> None:
    found: list[dict[str, Any]] = [
        {"Id": "sha256:aa", "RepoTags": ["a:1", "a:2"]},
        {"Id": "sha256:bb", "RepoTags": ["<none>:<none>"]},
        {"Id": "sha256:cc", "RepoTags": None},
    ]
    assert [image["tags"] for image in engine_facts.images(found)] == [["a:1", "a:2"], [], []]


def test_pools_come_from_the_engine() -> None:
    info = {"DefaultAddressPools": [{"Base": "10.5.0.0/16", "Size": 24}]}
    assert engine_facts.default_address_pools(info, "") == ["10.5.0.0/16"]


def test_pools_come_from_the_configuration() -> None:
    text = json.dumps({"default-address-pools": [{"base": "10.6.0.0/16", "size": 24}]})
    assert engine_facts.default_address_pools({}, text) == ["10.6.0.0/16"]


@pytest.mark.parametrize("text", ["", "{}", "{", "[]", '{"default-address-pools": [{"base": 1}]}'])
def test_built_in_pools(text: str) -> None:
    pools = engine_facts.default_address_pools({}, text)
    assert pools[0] == "172.17.0.0/16"
    assert pools[-1] == "192.168.0.0/16"


@pytest.mark.parametrize(
    ("swarm", "pools"),
    [
        (None, []),
        ({"LocalNodeState": "inactive", "Cluster": None}, []),
        ({"LocalNodeState": "active", "Cluster": None}, ["10.0.0.0/8"]),
        (
            {"LocalNodeState": "active", "Cluster": {"DefaultAddrPool": ["10.9.0.0/16"], "SubnetSize": 26}},
            ["10.9.0.0/16"],
        ),
    ],
)
def test_pools_of_a_swarm(swarm: Any, pools: list[str]) -> None:
    assert engine_facts.swarm_address_pools({"Swarm": swarm}) == pools


def test_security_options() -> None:
    options = ["name=apparmor", "name=seccomp,profile=builtin", "name=userns", "odd"]
    assert engine_facts.security_options({"SecurityOptions": options}) == ["apparmor", "seccomp", "userns"]
    assert engine_facts.security_options({"SecurityOptions": None}) == []


def test_ways_to_nvidia_gpus(tmp_path: Path) -> None:
    assert engine_facts.nvidia({"Runtimes": {"runc": {}, "nvidia": {}}}) == ["runtime"]
    assert engine_facts.nvidia({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}) == [
        "cdi"
    ]
    nothing = {"Runtimes": None, "DiscoveredDevices": None, "CDISpecDirs": [str(tmp_path), "/missing"]}
    (tmp_path / "other.yaml").write_text("kind: vendor.com/net\n")
    (tmp_path / "README").write_text("nvidia.com/gpu\n")
    assert engine_facts.nvidia(nothing) == []
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    assert engine_facts.nvidia(nothing) == ["cdi"]


def test_classic_image_store() -> None:
    info = {"DriverStatus": [["Backing Filesystem", "extfs"]], "DockerRootDir": "/data/docker"}
    assert engine_facts.image_store(info) == "classic"
    assert engine_facts.image_dir(info) == "/data/docker"
    assert engine_facts.blob_dir(info) == ""


def test_containerd_image_store() -> None:
    info = {
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
        "DockerRootDir": "/data/docker",
        "Containerd": {"Address": "/run/containerd/containerd.sock"},
    }
    assert engine_facts.image_store(info) == "containerd"
    assert engine_facts.image_dir(info) == "/var/lib/containerd"
    blobs = "io.containerd.content.v1.content/blobs/sha256"
    assert engine_facts.blob_dir(info) == f"/var/lib/containerd/{blobs}"
    info["Containerd"] = {"Address": "/run/docker/containerd/containerd.sock"}
    assert engine_facts.image_dir(info) == "/data/docker"
    assert engine_facts.blob_dir(info) == f"/data/docker/containerd/daemon/{blobs}"
