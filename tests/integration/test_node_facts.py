"""node_facts with a real engine, as root and as a user who may not use Docker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.module_utils.base import host
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import remove_container
from ansible_collections.rdm.provision.plugins.modules import node_facts

from tests.conftest import COLLECTIONS
from tests.integration.engine import Engine, net, private_engine

NET = net(12)
SUBNET = f"{NET}.0/24"
NOBODY = 65534


@pytest.fixture(scope="module")
def occupied(engine: Engine, busybox_image: str) -> Iterator[Engine]:
    """The engine with a network, a running container on it and one that has never run."""
    api = engine.api
    labels = {"rdm.provision.cluster": "facts"}
    network = api.post(
        "/networks/create",
        {
            "Name": "facts-net",
            "Driver": "bridge",
            "Internal": True,
            "IPAM": {"Config": [{"Subnet": SUBNET, "Gateway": f"{NET}.254"}]},
            "Labels": labels,
        },
    )
    for name, address in (("facts-running", f"{NET}.7"), ("facts-created", f"{NET}.8")):
        end = {"IPAMConfig": {"IPv4Address": address}}
        spec = {
            "Image": busybox_image,
            "Labels": labels,
            "HostConfig": {"NetworkMode": "facts-net", "Init": True},
            "NetworkingConfig": {"EndpointsConfig": {"facts-net": end}},
        }
        api.post("/containers/create", spec, name=name)
    api.post("/containers/facts-running/start")
    yield engine
    for name in ("facts-running", "facts-created"):
        remove_container(api, name)
    api.delete(f"/networks/{network['Id']}")


def facts(socket: str) -> Any:
    """Return the facts of this machine with the engine at `socket`."""
    return node_facts.node_facts("/sys", "/dev", socket)


def facts_as(uid: int, socket: str) -> dict[str, Any]:
    """Return the facts as another user sees them, from a process that has given up root."""
    code = (
        "import json, os, sys\n"
        f"sys.path.insert(0, {str(COLLECTIONS)!r})\n"
        "from ansible_collections.rdm.provision.plugins.modules import node_facts\n"
        f"os.setgroups([]); os.setgid({uid}); os.setuid({uid})\n"
        f"json.dump(node_facts.node_facts('/sys', '/dev', {socket!r}), sys.stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    node: dict[str, Any] = json.loads(done.stdout)
    return node


def test_engine(occupied: Engine, busybox_image: str) -> None:
    node = facts(occupied.socket)
    docker = node["docker"]
    assert (node["docker_state"], node["docker_error"]) == ("ok", "")
    assert docker["version"] == occupied.api.version()["Version"]
    assert docker["image_dir"] == node["disk"]["path"] == str(occupied.root / "data")
    assert docker["image_store"] == "classic"
    assert docker["log_driver"] == "json-file"
    assert {"bridge", "macvlan"} <= set(docker["network_plugins"])
    assert docker["default_address_pools"][0] == "172.17.0.0/16"
    # Other tests give the same image other names.
    assert any(busybox_image in image["tags"] for image in docker["images"])
    documented = yaml.safe_load(node_facts.RETURN)["node"]["contains"]["docker"]["contains"]
    assert set(docker) == set(documented)


def test_networks(occupied: Engine) -> None:
    networks = {network["name"]: network for network in facts(occupied.socket)["docker"]["networks"]}
    network = networks["facts-net"]
    assert network["subnets"] == [{"subnet": SUBNET, "gateway": f"{NET}.254"}]
    assert network["driver"] == "bridge"
    assert network["labels"] == {"rdm.provision.cluster": "facts"}
    assert sorted(network["containers"]) == ["facts-created", "facts-running"]
    assert networks["none"]["subnets"] == []


def test_containers(occupied: Engine, busybox_image: str) -> None:
    containers = {entry["name"]: entry for entry in facts(occupied.socket)["docker"]["containers"]}
    running, created = containers["facts-running"], containers["facts-created"]
    assert (running["state"], running["networks"]) == ("running", {"facts-net": f"{NET}.7"})
    assert (created["state"], created["networks"]) == ("created", {"facts-net": f"{NET}.8"})
    assert running["image"] == busybox_image
    assert running["labels"] == {"rdm.provision.cluster": "facts"}


def test_the_network_of_a_container_is_seen_as_a_route_and_an_address(occupied: Engine) -> None:
    node = facts(occupied.socket)
    bridges = [entry["interface"] for entry in node["routes"] if entry["destination"] == SUBNET]
    assert len(bridges) == 1
    (interface,) = (entry for entry in node["interfaces"] if entry["name"] == bridges[0])
    assert f"{NET}.254/24" in interface["addresses"]


def test_memlock_is_that_of_this_engine(engine: Engine) -> None:
    assert host.daemon_pid(engine.socket) == engine.pid
    limits = Path(f"/proc/{engine.pid}/limits").read_text()
    node = facts(engine.socket)
    assert node["memlock"]["hard"] == host.hard_limit(limits)


def test_a_daemon_whose_process_is_hidden(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "daemon_pid", lambda socket, *_: 0)
    node = facts(engine.socket)
    assert node["memlock"]["raise_allowed"] is True
    assert [finding["what"] for finding in node["findings"]] == ["daemon-hidden"]


def test_configured_pools(tmp_path: Path) -> None:
    configuration = tmp_path / "daemon.json"
    configuration.write_text('{"default-address-pools": [{"base": "10.216.0.0/16", "size": 24}]}')
    with private_engine(f"--config-file={configuration}") as engine:
        assert host.daemon_config(engine.pid) == str(configuration)
        docker = facts(engine.socket)["docker"]
    assert docker["default_address_pools"] == ["10.216.0.0/16"]


def test_a_user_who_may_not_use_docker(engine: Engine) -> None:
    engine.root.chmod(0o755)
    node = facts_as(NOBODY, engine.socket)
    assert (node["docker"], node["docker_state"]) == (None, "forbidden")
    assert node["docker_error"].startswith(f"user nobody may not use {engine.socket}: add it to the group")
    assert node["user"]["root"] is False
    assert node["interfaces"]
    assert node["findings"] == []
