"""RDMA between real containers on a real network, perftest by a stand-in: rounds, rendezvous, verdict."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import remove_container
from ansible_collections.rdm.provision.plugins.module_utils.fabric.rdma_devices_script import gid_of

from tests.integration.conftest import plugged
from tests.integration.engine import Engine, net
from tests.integration.fabric import NETWORK, containers, verified

NET, NEXT = net(10), net(11)
ADDRESSES = {f"n{number}": f"{NET}.{10 + number}" for number in range(1, 5)}
DEVICES = {"n1": "mlx5_0", "n2": "mlx5_0", "n3": "mlx5_0", "n4": "mlx5_slow"}


@dataclass
class Cluster:
    """Containers n1 to n4, each with its own device and a sysfs tree for it."""

    engine: Engine
    trees: Path

    def give(self, node: str) -> None:
        """Create a node's device."""
        device = self.trees / node / "dev/infiniband/uverbs0"
        device.parent.mkdir(parents=True)
        device.touch()

    def verify(self, *arguments: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Run the part of the role; return exit code, evaluation, and the reasons of failed hosts."""
        return verify(self.trees, self.engine.environment, *arguments)


def verify(
    trees: Path,
    environment: dict[str, str],
    *arguments: str,
    nodes: Sequence[str] = tuple(ADDRESSES),
    **variables: Any,
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Run the part of the role with an engine's environment; return as Cluster.verify does."""
    # A node that is silent for longer is dead, even on a busy machine.
    given = {"verify_rdma_timeout": 60.0, **variables}
    addresses = {name: ADDRESSES[name] for name in nodes}
    words = ("-e", "__verify_root=/tree", *arguments)
    return verified("rdma", trees, environment, addresses, *words, tasks_from="rdma", **given)


def given(number: int) -> dict[str, str]:
    """Return the engine's settings that give a container a character device."""
    path = f"/dev/infiniband/uverbs{number}"
    return {"PathOnHost": "/dev/null", "PathInContainer": path, "CgroupPermissions": "rw"}


@pytest.fixture
def cluster(engine: Engine, python_image: str, cable: str, tmp_path: Path) -> Iterator[Cluster]:
    """Four containers; sysfs shows the device of n3, but it cannot be opened."""
    cluster = Cluster(engine, tmp_path)

    def specification(node: str) -> dict[str, Any]:
        port = tmp_path / node / "sys/class/infiniband" / DEVICES[node] / "ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
        verbs = tmp_path / node / "sys/class/infiniband_verbs/uverbs0"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"{DEVICES[node]}\n")
        if node != "n3":
            cluster.give(node)
        host = {"Devices": [given(0)], "Binds": [f"{tmp_path / node}:/tree"]}
        return {"Image": python_image, "HostConfig": host}

    with containers(engine, cable, ADDRESSES, specification):
        yield cluster


def test_slow_node_and_node_without_a_device_are_named(cluster: Cluster) -> None:
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


def test_check_mode_only_reads(cluster: Cluster) -> None:
    code, rdma, failed = cluster.verify("--check")
    assert (code, failed) == (0, {})
    assert rdma["bandwidth_gbit"] == {}
    assert not rdma["verdicts"]["n3"]["ok"]


def test_each_rail_is_checked_and_a_fault_of_all_is_reported_once(tmp_path: Path) -> None:
    # Without an engine, so that every rail has the same result.
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    rails = {"ib0": f"{NET}.0/24", "ib1": f"{NEXT}.0/24"}
    code, rdma, failed = verify(tmp_path, environment, verify_rails=rails)
    assert (code, set(failed)) == (2, set(ADDRESSES))
    assert list(rdma["rails"]) == ["ib0", "ib1"]
    for name, one in rdma["verdicts"].items():
        assert one["reason"] == failed[name] == rdma["rails"]["ib1"]["verdicts"][name]["reason"]
        assert "none.sock" in one["reason"]


RAILS = {"ib0": f"{NET}.0/24", "ib1": f"{NEXT}.0/24"}
RAIL_NODES = ("n1", "n2", "n3")


def on_rail(node: str, rail: int) -> str:
    """Return a node's address on a rail."""
    return ADDRESSES[node].replace(NET, (NET, NEXT)[rail])


def show_device(tree: Path, rail: int, name: str, address: str) -> None:
    """Create an RDMA device with an address, which a node shows and a container can open."""
    port = tree / "sys/class/infiniband" / name / "ports/1"
    verbs = tree / f"sys/class/infiniband_verbs/uverbs{rail}/ibdev"
    texts = {
        port / "state": "4: ACTIVE",
        port / "rate": f"{100 + 100 * rail} Gb/sec",
        port / "gids/3": gid_of(address),
        port / "gid_attrs/types/3": "RoCE v2",
        verbs: name,
        tree / f"dev/infiniband/uverbs{rail}": "",
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.fixture
def on_rails(engine: Engine, python_image: str, tmp_path: Path) -> Iterator[Cluster]:
    """Three containers on two networks, with a device on each; n3's on the second rail is slow."""
    networks = [f"{NETWORK}-{number}" for number in range(len(RAILS))]
    with contextlib.ExitStack() as ends:
        for network, subnet, letters in zip(networks, RAILS.values(), ("ab", "cd"), strict=True):
            parent = ends.enter_context(plugged(letters))
            spec = {"Name": network, "Driver": "macvlan", "Options": {"parent": parent}}
            engine.api.post("/networks/create", {**spec, "IPAM": {"Config": [{"Subnet": subnet}]}})
            ends.callback(engine.api.delete, f"/networks/{network}")
        for node in RAIL_NODES:
            endpoints = [
                {"IPAMConfig": {"IPv4Address": on_rail(node, number)}} for number in range(len(RAILS))
            ]
            host = {
                "NetworkMode": networks[0],
                "Init": True,
                "Devices": [given(number) for number in range(len(RAILS))],
                "Binds": [f"{tmp_path / node}:/tree"],
            }
            first = {"EndpointsConfig": {networks[0]: endpoints[0]}}
            spec = {"Image": python_image, "HostConfig": host, "NetworkingConfig": first}
            engine.api.post("/containers/create", spec, name=f"rdm-{node}")
            ends.callback(remove_container, engine.api, f"rdm-{node}")
            second = {"Container": f"rdm-{node}", "EndpointConfig": endpoints[1]}
            engine.api.post(f"/networks/{networks[1]}/connect", second)
            engine.api.post(f"/containers/rdm-{node}/start")
            show_device(tmp_path / node, 0, "mlx5_0", on_rail(node, 0))
            slow = "mlx5_slow" if node == "n3" else "mlx5_1"
            show_device(tmp_path / node, 1, slow, on_rail(node, 1))
        yield Cluster(engine, tmp_path)


def evaluate_rails(cluster: Cluster, *nodes: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure between nodes; return the evaluation by rail, and the reasons of failed nodes."""
    environment = cluster.engine.environment
    _code, rdma, failed = verify(cluster.trees, environment, nodes=nodes, verify_rails=RAILS)
    return rdma["rails"], failed


def test_each_rail_is_measured_with_its_own_device(on_rails: Cluster) -> None:
    rails, failed = evaluate_rails(on_rails, *RAIL_NODES)
    assert failed == {"n3": "rail ib1: it sends 24.1 and receives 24.1 Gb/s where 96.6 are usual"}
    assert rails["ib0"]["bandwidth_gbit"]["n1"] == {"n2": 96.61, "n3": 96.61}
    assert rails["ib1"]["bandwidth_gbit"]["n1"] == {"n2": 96.61, "n3": 24.11}
    rates = {rail: one["by_node"]["n3"]["rate_gbit"] for rail, one in rails.items()}
    assert rates == {"ib0": 100.0, "ib1": 200.0}


@pytest.mark.long
def test_each_rail_is_measured_over_its_own_network(on_rails: Cluster) -> None:
    """A cut cable of the second rail does not affect the first one or its evaluation."""
    pid = on_rails.engine.api.get("/containers/rdm-n2/json")["State"]["Pid"]
    enter = ["nsenter", "--net", "--target", str(pid), "ip"]
    shown = subprocess.run([*enter, "-json", "addr"], check=True, capture_output=True, text=True)
    (link,) = [
        one["ifname"]
        for one in json.loads(shown.stdout)
        if on_rail("n2", 1) in [address.get("local") for address in one["addr_info"]]
    ]
    subprocess.run([*enter, "link", "set", link, "down"], check=True)
    rails, failed = evaluate_rails(on_rails, "n1", "n2")
    assert rails["ib0"]["ok"]
    assert rails["ib0"]["bandwidth_gbit"]["n1"] == {"n2": 96.61}
    assert not rails["ib1"]["ok"]
    assert rails["ib1"]["bandwidth_gbit"] == {}
    assert failed
    assert all(reason.startswith("rail ib1: ") and "ib0" not in reason for reason in failed.values())
