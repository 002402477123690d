"""The network plugin under a real Docker Engine; only the virtual functions are stand-ins, seven of them.

Engines and plugins are killed here, so both are of these tests alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.engine.docker_api import _UnixConnection
from ansible_collections.rdm.provision.plugins.module_utils.lab.recipe import PLUGIN, file_content
from ansible_collections.rdm.provision.plugins.module_utils.sriov.plugin import READY

from tests.integration.conftest import BUSYBOX
from tests.integration.engine import Engine, private_engine, wait_until
from tests.integration.images import busybox_rootfs, import_image

FUNCTIONS = 7
CONTAINERS = 50
ROOT = Path(__file__).parents[2]
NETWORK = "rdm-test-sriov"


class Node:
    """An engine, the plugin beside it, and the interface that its functions are on.

    Attributes:
        engine: of these tests.
        parent: the interface.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parent = f"p{os.getpid()}"
        self.driver = f"rdm-test-{os.getpid()}"
        self.socket = Path(f"/run/docker/plugins/{self.driver}.sock")
        self.state = engine.root / "sriov"
        self.program = engine.root / "rdm-sriov"
        self.log = engine.root / "rdm-sriov.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start_plugin(self) -> None:
        """Start the plugin and wait until it says that it is ready."""
        before = self.log.read_text().count(READY) if self.log.exists() else 0
        places = ["--socket", self.socket, "--state", self.state, "--engine", self.engine.socket]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(self.program), *map(str, places)], stdout=log, stderr=subprocess.STDOUT
            )
        assert wait_until(lambda: self.log.read_text().count(READY) > before, 20), self.log.read_text()

    def stop_plugin(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the plugin."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(20)

    def docker(self, *words: object) -> str:
        """Run docker; return what it printed, or raise with what it complained of."""
        argv = ["docker", *map(str, words)]
        done = subprocess.run(
            argv, env=self.engine.environment, capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.strip()

    def run(self, name: str, *options: object, network: str = NETWORK) -> str:
        """Start a container on the plugin's network; return its id."""
        return self.docker("run", "-d", "--init", "--name", name, "--network", network, *options, BUSYBOX)

    def remove(self, *names: str) -> None:
        """Remove containers."""
        self.docker("rm", "-f", *names)

    def reserve(self, address: str) -> dict[str, Any]:
        """Reserve a function for an address; return what the plugin says of it."""
        network = self.docker("network", "inspect", "--format", "{{.Id}}", NETWORK)
        connection = _UnixConnection(str(self.socket), 30)
        request = {"NetworkID": network, "Address": f"{address}/24"}
        connection.request("POST", "/RdmSriov.Reserve", json.dumps(request))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert "Err" not in answer, answer
        found: dict[str, Any] = answer["Function"]
        return found

    def address(self, name: str) -> str:
        """Return the hardware address that a container sees on its interface."""
        return self.docker("exec", name, "cat", "/sys/class/net/eth0/address")

    def running(self, name: str) -> bool:
        """Say whether a container runs."""
        return self.docker("inspect", "--format", "{{.State.Running}}", name) == "true"

    def promised(self) -> dict[str, Any]:
        """Return the endpoints that the plugin keeps."""
        endpoints: dict[str, Any] = json.loads((self.state / "state.json").read_text())["endpoints"]
        return endpoints


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with an engine, a plugin and a network."""
    with private_engine() as engine:
        node = Node(engine)
        link = ["ip", "link", "add", node.parent, "type", "veth", "peer", "name", f"{node.parent}x"]
        subprocess.run(link, check=True)
        try:
            subprocess.run(["ip", "link", "set", f"{node.parent}x", "up"], check=True)
            node.program.write_bytes(file_content(ROOT / "roles/lab/files", PLUGIN))
            import_image(engine.api, BUSYBOX, busybox_rootfs())
            node.start_plugin()
            option = f"netdevice={node.parent}"
            node.docker(
                "network", "create", "-d", node.driver, "-o", option, "--subnet", "192.169.16.0/24", NETWORK
            )
            yield node
            node.docker("network", "rm", NETWORK)
            node.stop_plugin()
            assert not node.socket.exists()
            assert not list(Path("/sys/class/net").glob(f"{node.parent}v*")), "the plugin left links"
        finally:
            if node._process is not None and node._process.poll() is None:
                node.stop_plugin(signal.SIGKILL)
            node.socket.unlink(missing_ok=True)
            subprocess.run(["ip", "link", "del", node.parent], check=True)


def test_containers_reach_each_other_and_no_gateway_that_is_not_there(node: Node) -> None:
    node.run("na", "--ip", "192.169.16.100")
    node.run("nb", "--ip", "192.169.16.101")
    node.docker("exec", "na", "ping", "-c", "1", "-w", "5", "192.169.16.101")
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


def test_more_containers_than_functions_at_once(node: Node) -> None:
    def run(number: int) -> str:
        try:
            node.run(f"c{number}")
        except RuntimeError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(CONTAINERS) as pool:
        said = list(pool.map(run, range(CONTAINERS)))
    started = [f"c{number}" for number, words in enumerate(said) if not words]
    assert len(started) == FUNCTIONS
    for words in filter(None, said):
        assert f"no virtual function of {node.parent} is free: containers have all {FUNCTIONS}" in words
    assert len({node.address(name) for name in started}) == FUNCTIONS
    node.remove(*(f"c{number}" for number in range(CONTAINERS)))
    assert node.promised() == {}


def test_containers_that_start_at_once_get_what_was_reserved_for_each(node: Node) -> None:
    def start(number: int) -> tuple[str, str]:
        reserved = node.reserve(f"192.169.16.{number}")
        node.run(f"c{number}", "--ip", f"192.169.16.{number}")
        return reserved["mac"], node.address(f"c{number}")

    numbers = range(100, 100 + FUNCTIONS)
    with ThreadPoolExecutor(FUNCTIONS) as pool:
        addresses = list(pool.map(start, numbers))
    assert all(reserved == found for reserved, found in addresses)
    assert len(set(addresses)) == FUNCTIONS
    running = node.reserve("192.169.16.100")
    assert (running["mac"], running["interface"]) == (addresses[0][0], "")
    node.remove(*(f"c{number}" for number in numbers))
    assert node.promised() == {}


def test_a_plugin_that_died_knows_everything_again(node: Node) -> None:
    node.run("na", "--ip", "192.169.16.100")
    node.stop_plugin(signal.SIGKILL)
    node.start_plugin()
    node.run("nb", "--ip", "192.169.16.101")
    assert node.address("na") != node.address("nb")
    node.docker("exec", "nb", "ping", "-c", "1", "-w", "5", "192.169.16.100")
    node.remove("na", "nb")
    assert node.promised() == {}


@pytest.mark.parametrize("left", ["", '{"networks": {'])
def test_a_plugin_without_its_state_gives_nobody_what_another_has(node: Node, left: str) -> None:
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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_after_its_engine_a_container_has_the_same_function(node: Node, how: signal.Signals) -> None:
    node.run("na", "--ip", "192.169.16.100", "--restart", "always")
    node.run("nb", "--ip", "192.169.16.101")
    before = node.address("na")
    engine = node.engine
    if how == signal.SIGKILL:
        engine.kill()
    else:
        engine.stop()
    engine.start()
    assert wait_until(lambda: node.running("na"), 60)
    assert node.address("na") == before
    # The other one did not come back, and holds nothing.
    assert not node.running("nb")
    for number in range(FUNCTIONS - 1):
        node.run(f"c{number}")
    node.remove("na", "nb", *(f"c{number}" for number in range(FUNCTIONS - 1)))
    assert node.promised() == {}


def test_what_a_network_cannot_be_is_said_by_docker(node: Node) -> None:
    def refused(*words: str) -> str:
        with pytest.raises(RuntimeError) as caught:
            node.docker("network", "create", "-d", node.driver, "--subnet", "192.169.17.0/24", *words, "x")
        return str(caught.value)

    assert "there is no network interface nowhere0" in refused("-o", "netdevice=nowhere0")
    assert "there is no option netdevise" in refused("-o", f"netdevise={node.parent}")
    assert "vlan '5000' is no number from 0 to 4095" in refused(
        "-o", "vlan=5000", "-o", f"netdevice={node.parent}"
    )
