"""The network plugin with a real Docker Engine; only its seven virtual functions are stand-ins.

These tests kill engines and plugins, so they do not share them with others.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.rdm.provision.plugins.modules import container_ready

from tests.integration.conftest import BUSYBOX
from tests.integration.engines import ENGINES
from tests.integration.sriov_node import CONTAINERS, NETWORK, VFS, Node, sriov_node
from tests.printed_hints import follow
from tests.unit.plugins.modules.running import run_module
from trainer.tests.waiting import wait_until

OTHERS = [pytest.param(version, marks=pytest.mark.long) for version, release in ENGINES.items() if release]
# test_driver.py covers what counts as a missing state.
LEFT = ["", pytest.param('{"networks": {', marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=["20.10", *OTHERS])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with an engine, a plugin and a network."""
    with sriov_node(request.param) as node:
        yield node


def test_containers_reach_each_other_without_a_gateway(node: Node) -> None:
    node.run("na", "--ip", "192.169.16.100")
    node.run("nb", "--ip", "192.169.16.101")
    node.docker("exec", "na", "ping", "-c", "1", "-w", "60", "192.169.16.101")
    assert node.docker("exec", "na", "ip", "route").splitlines() == [
        "192.169.16.0/24 dev eth0 scope link  src 192.169.16.100"
    ]
    node.remove("na", "nb")
    assert node.promised() == {}


def test_a_container_keeps_its_address_over_every_restart(node: Node) -> None:
    node.run("other", "--ip", "192.169.16.99")
    node.run("na", "--ip", "192.169.16.100")
    before = node.address("na")
    node.remove("other")
    node.docker("restart", "-t", "1", "na")
    assert node.address("na") == before
    node.remove("na")
    node.run("na", "--ip", "192.169.16.100")
    assert node.address("na") == before
    node.remove("na")


def test_a_hardware_address_chooses_the_vf_before_version_1_44_of_the_api(node: Node) -> None:
    if not node.speaks("1.41"):
        return
    wanted = node.reserve("192.169.16.100")["mac"]
    node.create("other", "1.41", vf=f"{node.parent}v{VFS - 1}")
    assert [one["vf"] for one in node.promised().values()] == [f"{node.parent}v{VFS - 1}"]
    node.remove("other")
    node.create("na", "1.41", everywhere=wanted)
    assert node.address("na") == wanted
    node.remove("na")


def test_more_containers_than_vfs_at_once(node: Node) -> None:
    started, refused = node.race(CONTAINERS)
    assert len(started) == VFS
    for words in refused:
        assert f"no virtual function of {node.parent} is free: containers have all {VFS}" in words
    assert len({node.address(name) for name in started}) == VFS
    node.remove(*(f"race{number}" for number in range(CONTAINERS)))
    assert node.promised() == {}


def test_concurrent_containers_get_their_reserved_vfs(node: Node) -> None:
    def start(number: int) -> tuple[str, str]:
        reserved = node.reserve(f"192.169.16.{number}")
        node.run(f"c{number}", "--ip", f"192.169.16.{number}")
        return reserved["mac"], node.address(f"c{number}")

    numbers = range(100, 100 + VFS)
    with ThreadPoolExecutor(VFS) as pool:
        addresses = list(pool.map(start, numbers))
    assert all(reserved == found for reserved, found in addresses)
    assert len(set(addresses)) == VFS
    running = node.reserve("192.169.16.100")
    assert (running["mac"], running["interface"]) == (addresses[0][0], "")
    node.remove(*(f"c{number}" for number in numbers))
    assert node.promised() == {}


def test_restarted_plugin_restores_its_state(node: Node) -> None:
    node.run("na", "--ip", "192.169.16.100")
    node.stop_plugin(signal.SIGKILL)
    node.start_plugin()
    node.run("nb", "--ip", "192.169.16.101")
    assert node.address("na") != node.address("nb")
    node.docker("exec", "nb", "ping", "-c", "1", "-w", "60", "192.169.16.100")
    node.remove("na", "nb")
    assert node.promised() == {}


def test_engine_reports_a_missing_plugin_and_recovers_with_it(node: Node) -> None:
    node.run("na", "--ip", "192.169.16.100")
    node.run("nb", "--ip", "192.169.16.101")
    before = node.address("na")
    node.stop_plugin()
    # At once: the engine repeats each call of the plugin for some time.
    with ThreadPoolExecutor() as pool:
        calls = (("stop", "-t", "1", "na"), ("rm", "-f", "nb"))
        ends = [pool.submit(node.docker, *words) for words in calls]
        with pytest.raises(RuntimeError, match=node.driver):
            node.run("nc")
        assert NETWORK in node.docker("network", "ls", "--format", "{{.Name}}").split()
        for end in ends:
            end.result()
    node.engine.stop()
    node.engine.start()
    assert NETWORK in node.docker("network", "ls", "--format", "{{.Name}}").split()
    node.start_plugin()
    node.docker("start", "na")
    node.wait_back("na", before)
    # Containers that ended meanwhile hold no VF.
    names = [f"c{number}" for number in range(VFS - 1)]
    for name in names:
        node.run(name)
    node.remove("na", "nc", *names)
    assert node.promised() == {}


@pytest.mark.parametrize("left", LEFT)
def test_plugin_without_its_state_reassigns_no_vf_in_use(node: Node, left: str) -> None:
    node.run("na")
    node.stop_plugin()
    (node.state / "state.json").unlink()
    if left:
        (node.state / "state.json").write_text(left)
    node.start_plugin()
    node.run("nb")
    assert node.address("na") != node.address("nb")
    node.remove("na", "nb")
    assert node.promised() == {}


@pytest.mark.parametrize("left", LEFT)
def test_a_plugin_without_state_and_engine_socket_is_sent_its_networks(
    node: Node, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.run("na")
    node.stop_plugin()
    (node.state / "state.json").unlink()
    if left:
        (node.state / "state.json").write_text(left)
    # As in a container; the container "plugin" stands for it.
    node.start_plugin(engine="/nowhere.sock")
    with pytest.raises(RuntimeError, match="unknown here and the engine does not say what it was") as caught:
        node.run("nb")
    node.remove("nb")
    node.docker("run", "-d", "--init", "--name", "plugin", "--network", "none", BUSYBOX)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{node.engine.socket}")
    params = {"name": "plugin", "cluster": "rdm", "socket": str(node.socket)}
    # What `up` does in that case.
    assert follow(str(caught.value), "up", lambda _: run_module(container_ready, params))["taught"] == [
        NETWORK
    ]
    assert not run_module(container_ready, params)["changed"]
    node.run("nb")
    assert node.address("na") != node.address("nb")
    node.remove("na", "nb", "plugin")
    assert node.promised() == {}
    node.stop_plugin()
    node.start_plugin()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_container_keeps_its_vf_after_an_engine_restart(node: Node, how: signal.Signals) -> None:
    node.run("na", "--ip", "192.169.16.100", "--restart", "always")
    node.run("nb", "--ip", "192.169.16.101")
    before = node.address("na")
    engine = node.engine
    if how == signal.SIGKILL:
        engine.kill()
    else:
        engine.stop()
    engine.start()
    node.wait_back("na", before)
    # The other one did not start again, and holds no VF.
    assert not node.running("nb")
    for number in range(VFS - 1):
        node.run(f"c{number}")
    node.remove("na", "nb", *(f"c{number}" for number in range(VFS - 1)))
    assert node.promised() == {}


def test_a_networks_options_are_in_its_containers(node: Node) -> None:
    options = [
        "-o",
        f"netdevice={node.parent}",
        "-o",
        "mtu=1400",
        "-o",
        "prefix=fabric",
        "-o",
        "privileged=1",
    ]
    node.docker("network", "create", "-d", node.driver, "--subnet", "192.169.17.0/24", *options, "hooked")
    node.run("na", "--ip", "192.169.17.100", network="hooked")
    node.run("nb", "--ip", "192.169.17.101", network="hooked")
    assert node.docker("exec", "na", "cat", "/sys/class/net/fabric0/mtu") == "1400"
    node.docker("exec", "na", "ping", "-c", "1", "-w", "60", "-s", "1300", "192.169.17.101")
    node.remove("na", "nb")
    wait_until("the network is removed", lambda: _removed(node, "hooked"))
    assert node.promised() == {}


def _removed(node: Node, network: str) -> bool:
    """Remove a network; return whether it is gone. Endpoints may outlive their containers for a moment."""
    try:
        node.docker("network", "rm", network)
    except RuntimeError:
        return False
    return True


def test_docker_reports_why_a_network_is_impossible(node: Node) -> None:
    def refused(*words: str) -> str:
        with pytest.raises(RuntimeError) as caught:
            node.docker("network", "create", "-d", node.driver, "--subnet", "192.169.17.0/24", *words, "x")
        return str(caught.value)

    assert "there is no network interface nowhere0" in refused("-o", "netdevice=nowhere0")
    assert "there is no option netdevise" in refused("-o", f"netdevise={node.parent}")
    assert "vlan '5000' is no number from 0 to 4095" in refused(
        "-o", "vlan=5000", "-o", f"netdevice={node.parent}"
    )
