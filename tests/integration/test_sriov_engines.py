"""The network plugin with newer engines: their differences, and what happens when they end.

All of test_sriov_plugin.py runs under each of them in `make test-long`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.rdm_sriov.plugin import networks_of

from tests.integration.conftest import BUSYBOX
from tests.integration.engines import newer_engine
from tests.integration.sriov_node import NETWORK, VFS, Node, sriov_node


# Under 26.1 containers get virtual functions in tests/e2e/test_vm.py, too.
@pytest.fixture(scope="module", params=[pytest.param("26.1", marks=pytest.mark.long), "28.5+"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with a newer engine, a plugin and a network."""
    with sriov_node(request.param) as node:
        yield node


def test_container_runs_and_restarts_under_a_newer_engine(node: Node) -> None:
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
    # With a message to the plugin, and without.
    for end in (node.engine.stop, node.engine.kill):
        end()
        node.engine.start()
        node.wait_back("na", before)
    # Nothing is reserved for what died with its engine, whether or not the next engine reports it.
    node.remove("na", "nb", "nc")
    names = [f"c{number}" for number in range(VFS)]
    for name in names:
        node.run(name)
    node.remove(*names)
    assert node.promised() == {}


def test_a_hardware_address_chooses_the_vf_in_each_version_of_the_api(node: Node) -> None:
    wanted = node.reserve("192.169.16.100")["mac"]
    if node.speaks("1.43"):
        node.create("old", "1.43", everywhere=wanted)
        assert node.address("old") == wanted
        node.remove("old")
    other = node.reserve("192.169.16.101")["mac"]
    assert other != wanted
    node.create("new", "1.44", end=wanted)
    assert node.address("new") == wanted
    node.remove("new")
    node.docker("run", "-d", "--init", "--name", "cli", "--network", NETWORK, "--mac-address", other, BUSYBOX)
    assert node.address("cli") == other
    node.remove("cli")


@pytest.mark.parametrize("version", ["1.43", "1.44"])
def test_a_container_gets_the_vf_that_it_requests_and_no_other(node: Node, version: str) -> None:
    if not node.speaks(version):
        with pytest.raises(DockerError, match="too old"):
            node.create("asks", version)
        return
    # By itself it would get the first.
    last = f"{node.parent}v{VFS - 1}"
    node.create("asks", version, vf=last)
    assert [one["vf"] for one in node.promised().values()] == [last]
    address = node.address("asks")
    node.docker("restart", "-t", "0", "asks")
    assert node.address("asks") == address
    node.engine.kill()
    node.engine.start()
    node.wait_back("asks", address)
    node.docker("stop", "-t", "0", "asks")
    names = [f"c{number}" for number in range(VFS)]
    for name in names:
        node.run(name)
    with pytest.raises(RuntimeError, match="is another container's now, or gone: rdm-provision up recreates"):
        node.docker("start", "asks")
    node.remove("asks", *names)
    assert node.promised() == {}


def test_a_plugin_without_its_state_queries_an_engine_that_refuses_old_versions(node: Node) -> None:
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
