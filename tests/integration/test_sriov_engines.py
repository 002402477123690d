"""The network plugin under newer engines: what differs between them, and their ends.

All of test_sriov_plugin.py runs under each of them in `make test-long`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import FUNCTION
from ansible_collections.rdm.provision.rdm_sriov.plugin import networks_of

from tests.integration.conftest import BUSYBOX
from tests.integration.engines import ENGINES, newer_engine
from tests.integration.sriov_node import CONTAINERS, FUNCTIONS, NETWORK, Node, sriov_node


@pytest.fixture(scope="module", params=[version for version, release in ENGINES.items() if release])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with a newer engine, a plugin and a network."""
    with sriov_node(request.param) as node:
        yield node


def create(
    node: Node, name: str, version: str, everywhere: str = "", end: str = "", function: str = ""
) -> None:
    """Create and start a container in one version of the API, with hardware addresses, or with a function."""
    ends: dict[str, dict[str, Any]] = {
        NETWORK: {"IPAMConfig": {"IPv4Address": "192.169.16.100"}, "MacAddress": end}
    }
    if function:
        ends[NETWORK]["DriverOpts"] = {FUNCTION: function}
    spec = {
        "Image": BUSYBOX,
        "MacAddress": everywhere,
        "HostConfig": {"NetworkMode": NETWORK, "Init": True, "RestartPolicy": {"Name": "always"}},
        "NetworkingConfig": {"EndpointsConfig": ends},
    }
    api = DockerAPI(node.engine.socket)
    api._version = {**api.version(), "ApiVersion": version}
    made = api.post("/containers/create", spec, name=name)["Id"]
    api.post(f"/containers/{made}/start")


def test_a_container_lives_and_comes_back_under_it(node: Node) -> None:
    node.run("na", "--ip", "192.169.16.100", "--restart", "always")
    node.run("nb", "--ip", "192.169.16.101")
    before = node.address("na")
    node.docker("exec", "nb", "ping", "-c", "1", "-w", "60", "192.169.16.100")
    node.stop_plugin(signal.SIGKILL)
    with pytest.raises(RuntimeError, match=node.driver):
        node.run("nc")
    node.start_plugin()
    node.docker("start", "nc")
    node.docker("restart", "-t", "1", "nb")
    # With a word to the plugin, and without.
    for end in (node.engine.stop, node.engine.kill):
        end()
        node.engine.start()
        assert node.comes_back("na", before)
    # Of what died with its engine nothing is held, whether or not the next engine says so.
    node.remove("na", "nb", "nc")
    names = [f"c{number}" for number in range(FUNCTIONS)]
    for name in names:
        node.run(name)
    node.remove(*names)
    assert node.promised() == {}


def test_more_containers_than_functions_at_once(node: Node) -> None:
    started, refused = node.race(CONTAINERS)
    assert len(started) == FUNCTIONS
    for words in refused:
        assert f"no virtual function of {node.parent} is free: containers have all {FUNCTIONS}" in words
    assert len({node.address(name) for name in started}) == FUNCTIONS
    node.remove(*(f"race{number}" for number in range(CONTAINERS)))
    assert node.promised() == {}


def test_a_hardware_address_chooses_the_function_in_each_version_of_the_api(node: Node) -> None:
    wanted = node.reserve("192.169.16.100")["mac"]
    if node.speaks("1.43"):
        create(node, "old", "1.43", everywhere=wanted)
        assert node.address("old") == wanted
        node.remove("old")
    other = node.reserve("192.169.16.101")["mac"]
    assert other != wanted
    create(node, "new", "1.44", end=wanted)
    assert node.address("new") == wanted
    node.remove("new")
    node.docker("run", "-d", "--init", "--name", "cli", "--network", NETWORK, "--mac-address", other, BUSYBOX)
    assert node.address("cli") == other
    node.remove("cli")


@pytest.mark.parametrize("version", ["1.43", "1.44"])
def test_a_container_gets_the_function_that_it_asks_for_and_no_other(node: Node, version: str) -> None:
    if not node.speaks(version):
        with pytest.raises(DockerError, match="too old"):
            create(node, "asks", version)
        return
    # By itself it would get the first.
    last = f"{node.parent}v{FUNCTIONS - 1}"
    create(node, "asks", version, function=last)
    assert [one["function"] for one in node.promised().values()] == [last]
    address = node.address("asks")
    node.docker("restart", "-t", "0", "asks")
    assert node.address("asks") == address
    node.engine.kill()
    node.engine.start()
    assert node.comes_back("asks", address)
    node.docker("stop", "-t", "0", "asks")
    names = [f"c{number}" for number in range(FUNCTIONS)]
    for name in names:
        node.run(name)
    with pytest.raises(RuntimeError, match="is another container's now, or gone: rdm-provision up makes"):
        node.docker("start", "asks")
    node.remove("asks", *names)
    assert node.promised() == {}


def test_a_plugin_without_its_state_asks_an_engine_that_refuses_old_versions(node: Node) -> None:
    socket = node.engine.root / "new.sock"
    with newer_engine(node.engine.socket, socket):
        old = DockerAPI(str(socket))
        old._version = {**old.version(), "ApiVersion": "1.43"}
        with pytest.raises(DockerError, match=r"client version 1\.43 is too old"):
            old.get("/networks")
        assert [options["netdevice"] for options in networks_of(str(socket), node.driver).values()] == [
            node.parent
        ]
        node.run("na")
        node.stop_plugin()
        (node.state / "state.json").unlink()
        node.start_plugin(str(socket))
        node.run("nb")
        assert node.address("na") != node.address("nb")
        node.remove("na", "nb")
    node.stop_plugin()
    node.start_plugin()
