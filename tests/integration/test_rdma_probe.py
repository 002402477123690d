"""RDMA between real containers on a real network, perftest by a stand-in: rounds, rendezvous, verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.integration.engine import Engine

NETWORK = "rdm-test-rdma"
ADDRESSES = {f"n{number}": f"10.213.78.{10 + number}" for number in range(1, 5)}
DEVICES = {"n1": "mlx5_0", "n2": "mlx5_0", "n3": "mlx5_0", "n4": "mlx5_slow"}


@dataclass
class Cluster:
    """Containers n1 to n4, each with a device of its own and a tree that shows what it is."""

    engine: Engine
    trees: Path

    def give(self, node: str) -> None:
        """Let a node's device be there."""
        device = self.trees / node / "dev/infiniband/uverbs0"
        device.parent.mkdir(parents=True)
        device.touch()

    def verify(self, *arguments: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Run the part of the role; return exit code, judgement, and the reasons of failed hosts."""
        return verify(self.trees, self.engine.environment, *arguments)


def verify(
    trees: Path, environment: dict[str, str], *arguments: str, **variables: Any
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Run the part of the role with an engine's environment; return as Cluster.verify does."""
    inventory = {
        "all": {
            "vars": {
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
                "verify_container": "rdm-{{ inventory_hostname }}",
                "verify_nodes": "".join(f"{name} {address}\n" for name, address in ADDRESSES.items()),
                **variables,
            },
            "hosts": {name: {} for name in ADDRESSES},
        }
    }
    play = {
        "hosts": "all",
        "gather_facts": False,
        "environment": {"DOCKER_HOST": environment["DOCKER_HOST"]},
        "tasks": [{"import_role": {"name": "rdm.provision.verify", "tasks_from": "rdma"}}],
    }
    (trees / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (trees / "play.yml").write_text(yaml.safe_dump([play]))
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            *("-i", str(trees / "hosts.yml"), str(trees / "play.yml")),
            *("-e", "__verify_root=/tree", *arguments),
        ],
        env={
            **environment,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        },
        capture_output=True,
        text=True,
    )
    results = [task for play in json.loads(done.stdout)["plays"] for task in play["tasks"]]
    judged = [host["rdma"] for task in results for host in task["hosts"].values() if host.get("rdma")]
    failed = {
        name: host["msg"] for task in results for name, host in task["hosts"].items() if host.get("failed")
    }
    assert judged, f"{done.stdout}{done.stderr}"
    return done.returncode, judged[-1], failed


@pytest.fixture
def cluster(engine: Engine, python_image: str, cable: str, tmp_path: Path) -> Iterator[Cluster]:
    """Four containers; the device of n3 is shown by sysfs and cannot be opened."""
    cluster = Cluster(engine, tmp_path)
    network = {
        "Name": NETWORK,
        "Driver": "macvlan",
        "Options": {"parent": cable},
        "IPAM": {"Config": [{"Subnet": "10.213.78.0/24"}]},
    }
    engine.api.post("/networks/create", network)
    try:
        for name, address in ADDRESSES.items():
            port = tmp_path / name / "sys/class/infiniband" / DEVICES[name] / "ports/1"
            port.mkdir(parents=True)
            (port / "state").write_text("4: ACTIVE\n")
            (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
            verbs = tmp_path / name / "sys/class/infiniband_verbs/uverbs0"
            verbs.mkdir(parents=True)
            (verbs / "ibdev").write_text(f"{DEVICES[name]}\n")
            if name != "n3":
                cluster.give(name)
            given = {
                "PathOnHost": "/dev/null",
                "PathInContainer": "/dev/infiniband/uverbs0",
                "CgroupPermissions": "rw",
            }
            spec = {
                "Image": python_image,
                "HostConfig": {
                    "NetworkMode": NETWORK,
                    "Init": True,
                    "Devices": [given],
                    "Binds": [f"{tmp_path / name}:/tree"],
                },
                "NetworkingConfig": {"EndpointsConfig": {NETWORK: {"IPAMConfig": {"IPv4Address": address}}}},
            }
            engine.api.post("/containers/create", spec, name=f"rdm-{name}")
            engine.api.post(f"/containers/rdm-{name}/start")
        yield cluster
    finally:
        for name in ADDRESSES:
            for found in engine.api.get("/containers/json", all=True, filters={"name": [f"^/rdm-{name}$"]}):
                engine.api.delete(f"/containers/{found['Id']}", force=True)
        engine.api.delete(f"/networks/{NETWORK}")


def test_the_slow_node_and_the_one_without_a_device_are_named_and_nothing_is_left(cluster: Cluster) -> None:
    code, rdma, failed = cluster.verify()
    assert code == 2
    assert failed == {
        "n3": "it has no RDMA device: none of mlx5_0 can be opened; "
        "its container was given /dev/infiniband/uverbs0, but cannot open it",
        "n4": "it sends 24.1 and receives 24.1 Gb/s where 96.6 are usual",
    }
    assert rdma["bandwidth_gbit"]["n1"] == {"n2": 96.61, "n4": 24.11}
    assert rdma["latency_us"] == {"n1": {"n2": 2.07, "n4": 2.07}, "n2": {"n4": 2.07}}
    assert rdma["by_node"]["n2"]["rate_gbit"] == 100.0
    assert rdma["sample"] is None
    for name in ADDRESSES:
        running = cluster.engine.api.get(f"/containers/rdm-{name}/top")["Processes"]
        assert not [process for process in running if "python3" in process[-1]]

    cluster.give("n3")
    cluster.engine.api.post("/containers/rdm-n4/stop", t=1)
    code, rdma, failed = cluster.verify()
    assert failed == {"n4": "container rdm-n4 does not run: it is exited"}
    assert rdma["bandwidth_gbit"]["n3"] == {"n1": 96.61, "n2": 96.61}


def test_in_check_mode_it_only_looks(cluster: Cluster) -> None:
    code, rdma, failed = cluster.verify("--check")
    assert (code, failed) == (0, {})
    assert rdma["bandwidth_gbit"] == {}
    assert not rdma["verdicts"]["n3"]["ok"]


def test_each_rail_is_looked_at_and_what_is_wrong_on_all_is_said_once(tmp_path: Path) -> None:
    # Without an engine, so that every look has the same answer.
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    rails = {"ib0": "10.213.78.0/24", "ib1": "10.213.79.0/24"}
    code, rdma, failed = verify(tmp_path, environment, verify_rails=rails)
    assert (code, set(failed)) == (2, set(ADDRESSES))
    assert list(rdma["rails"]) == ["ib0", "ib1"]
    for name, one in rdma["verdicts"].items():
        assert one["reason"] == failed[name] == rdma["rails"]["ib1"]["verdicts"][name]["reason"]
        assert "none.sock" in one["reason"]
