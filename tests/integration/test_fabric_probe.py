"""The measurement and evaluation of the fabric, between real containers on a real network."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.container_program import NotMeasuredError
from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import unpacked
from ansible_collections.rdm.provision.plugins.modules import fabric_probe

from tests.integration.engine import Engine, net
from tests.integration.fabric import NETWORK, containers, verified
from trainer.tests.waiting import wait_until

NAMES = ("n1", "n2", "n3")
TIMEOUT_S = 2.0
"""For a silent peer. One that answers, but gets no processor time, has until the deadline."""
HANGS_S = 120.0
NET, NEXT = net(8), net(9)
ADDRESSES = {name: f"{NET}.{10 + rank}" for rank, name in enumerate(NAMES)}
# Stands in for an sshd: the measurement needs only its banner.
GREETER = """
import socket
server = socket.create_server(("", 22))
while True:
    connection, _ = server.accept()
    connection.sendall(b"SSH-2.0-stand-in\\r\\n")
    connection.close()
"""


@dataclass
class Cluster:
    """Containers n1, n2, n3, each for a node of its own, on one macvlan network."""

    engine: Engine

    def inside(self, node: str, *argv: str) -> str:
        """Run a program of this machine in the network namespace of a container."""
        pid = self.engine.api.get(f"/containers/rdm-{node}/json")["State"]["Pid"]
        return subprocess.run(
            ["nsenter", f"--net=/proc/{pid}/ns/net", *argv], check=True, capture_output=True, text=True
        ).stdout

    def measure(self, node: str, **options: Any) -> dict[str, Any]:
        """Return the measurement of one node, with the defaults of the module."""
        parameters = {name: option.get("default") for name, option in fabric_probe.ARGUMENT_SPEC.items()}
        parameters.update(node=node, container=f"rdm-{node}", docker_socket=self.engine.socket)
        parameters.update(timeout=TIMEOUT_S, deadline=HANGS_S)
        parameters.update(options)
        return fabric_probe.measure(parameters, ADDRESSES)

    def verify(self, directory: Path, *arguments: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Run the role; return the play's exit code, the evaluation, and the reasons of failed hosts."""
        limits: dict[str, Any] = {"verify_timeout": TIMEOUT_S, "verify_deadline": HANGS_S}
        return verified("fabric", directory, self.engine.environment, ADDRESSES, *arguments, **limits)


@pytest.fixture
def cluster(engine: Engine, python_image: str, cable: str) -> Iterator[Cluster]:
    """Three containers that send an sshd's banner."""
    spec = {"Image": python_image, "Cmd": ["python3", "-c", GREETER]}
    with containers(engine, cable, ADDRESSES, lambda _node: spec):
        cluster = Cluster(engine)
        for name in NAMES:
            listening = partial(cluster.inside, name, "ss", "-ltn")
            wait_until(f"{name} listens", listening, lambda sockets: ":22" in sockets)
        yield cluster


def reason(cluster: Cluster, node: str, **options: Any) -> tuple[str, str]:
    with pytest.raises(NotMeasuredError) as caught:
        cluster.measure(node, **options)
    return str(caught.value), caught.value.state


def test_all_peers_are_measured(cluster: Cluster) -> None:
    found = cluster.measure("n2")
    assert found["measured"]
    assert found["method"] == "icmp"
    assert found["link"] == {"name": "eth0", "up": True}
    times = unpacked(found["rtt_us"])
    assert list(times) == ["n3", "n1"]
    assert all(rtt is not None and 0 < rtt < 1e6 for rtt in times.values())
    assert found["ssh"] == {"n3": "", "n1": ""}
    assert found["errors"] == {}


def test_each_rail_is_measured_and_the_verdict_names_the_one_that_is_cut(
    cluster: Cluster, tmp_path: Path
) -> None:
    rails = {"ib0": f"{NET}.0/24", "ib1": f"{NEXT}.0/24"}
    for node, address in ADDRESSES.items():
        # Both rails share a link here: otherwise eth1 might answer for eth0's address.
        cluster.inside(node, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore")
        cluster.inside(
            node, *["ip", "link", "add", "link", "eth0", "name", "eth1", "type", "macvlan", "mode", "bridge"]
        )
        cluster.inside(node, "ip", "addr", "add", f"{address.replace(NET, NEXT)}/24", "dev", "eth1")
        cluster.inside(node, "ip", "link", "set", "eth1", "up")
    arguments = ["--extra-vars", json.dumps({"verify_rails": rails})]
    status, evaluated, failed = cluster.verify(tmp_path, *arguments)
    assert (status, evaluated["ok"], failed) == (0, True, {})
    assert [sorted(times) for times in evaluated["rails"]["ib1"]["rtt_us"].values()] == [
        ["n2", "n3"],
        ["n1", "n3"],
        ["n1", "n2"],
    ]
    cluster.inside("n2", "ip", "link", "set", "eth1", "down")
    status, evaluated, failed = cluster.verify(tmp_path, *arguments)
    assert status == 2
    assert list(failed) == ["n2"], failed
    assert failed["n2"].startswith("rail ib1: no answer from any peer: ")
    assert [name for name, rail in evaluated["rails"].items() if not rail["ok"]] == ["ib1"]
    assert evaluated["findings"] == [f"rail ib1: n2: {failed['n2'].removeprefix('rail ib1: ')}"]


def test_duplicate_address_is_named(cluster: Cluster) -> None:
    assert cluster.measure("n1")["duplicate"] == ""
    mac = json.loads(cluster.inside("n2", "ip", "-json", "link", "show", "eth0"))[0]["address"]
    second = [f"{ADDRESSES['n1']}/24", "dev", "eth0"]
    cluster.inside("n2", "ip", "address", "add", *second)
    try:
        found = cluster.measure("n1", ssh=False)["duplicate"]
    finally:
        cluster.inside("n2", "ip", "address", "del", *second)
    assert found == f"{ADDRESSES['n1']} is used by {mac} on the wire below eth0, too"


def test_only_the_next_peers_have_their_sshd_probed(cluster: Cluster) -> None:
    assert list(cluster.measure("n2", ssh_peers=1)["ssh"]) == ["n3"]
    assert cluster.measure("n2", ssh=False)["ssh"] == {}


def test_each_reason_not_to_measure_is_a_sentence(cluster: Cluster, busybox_image: str) -> None:
    engine = cluster.engine
    assert reason(cluster, "n1", container="rdm-none") == ("there is no container rdm-none", "missing")
    text, _state = reason(cluster, "n1", docker_socket="/nonexistent/docker.sock")
    assert text == "no Docker Engine answers at /nonexistent/docker.sock: there is no such socket"
    text, state = reason(cluster, "n2", container="rdm-n1")
    assert (text, state) == (
        f"container rdm-n1: the container does not have the address {NET}.11",
        "running",
    )
    engine.api.post("/containers/rdm-n3/stop", t=1)
    text, state = reason(cluster, "n3")
    assert (text, state) == ("container rdm-n3 does not run: it is exited", "exited")
    engine.api.delete("/containers/rdm-n3", force=True)
    spec = {"Image": busybox_image, "HostConfig": {"NetworkMode": NETWORK, "Init": True}}
    engine.api.post("/containers/create", spec, name="rdm-n3")
    engine.api.post("/containers/rdm-n3/start")
    text, state = reason(cluster, "n3")
    assert state == "running"
    assert text == "container rdm-n3 has no python3 in its PATH, which the measurement needs"


def test_the_role_passes_on_a_whole_cluster_and_names_a_node_that_is_cut_off(
    cluster: Cluster, tmp_path: Path
) -> None:
    sample = ("-e", "verify_sample_above=2", "-e", "verify_sample_peers=1")
    code, fabric, failed = cluster.verify(tmp_path, *sample, "-e", "verify_all_pairs=true")
    assert code == 0
    assert fabric["ok"]
    assert fabric["method"] == "icmp"
    assert fabric["rtt_us"]["n1"]["n3"] > 0
    assert fabric["sample"] is None
    assert failed == {}

    code, fabric, failed = cluster.verify(tmp_path, *sample)
    assert code == 0
    assert {one: list(times) for one, times in fabric["rtt_us"].items()} == {
        "n1": ["n2"],
        "n2": ["n3"],
        "n3": ["n1"],
    }
    assert fabric["sample"]["peers"] == 1

    cluster.inside("n3", "ip", "link", "set", "eth0", "down")
    code, fabric, failed = cluster.verify(tmp_path)
    assert code == 2
    assert not fabric["ok"]
    assert failed == {
        "n3": "no answer from any peer: "
        "eth0 in its container has no link: the interface or cable below it is down"
    }
    code, fabric, failed = cluster.verify(tmp_path, "--limit", "n1,n2")
    assert code == 0
    assert fabric["outside"] == ["n3"]
    assert fabric["warnings"] == [
        "no answer from nodes that are not in this run: n3",
        "n1, n2: there is no ssh in the container, so no login was tried",
    ]


def test_in_check_mode_containers_that_do_not_run_are_left_out(cluster: Cluster, tmp_path: Path) -> None:
    cluster.engine.api.delete("/containers/rdm-n3", force=True)
    code, fabric, _failed = cluster.verify(tmp_path, "--check")
    assert code == 0
    assert fabric["nodes"] == ["n1", "n2"]
    code, fabric, failed = cluster.verify(tmp_path)
    assert code == 2
    assert failed == {"n3": "there is no container rdm-n3"}
