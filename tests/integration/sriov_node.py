"""A node for the network plugin's tests: an engine of some version, the plugin, and stand-ins for VFs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import remove_container
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    RESERVE,
    VF,
    call_plugin,
)
from ansible_collections.rdm.provision.rdm_lab.recipe import PLUGIN, file_content
from ansible_collections.rdm.provision.rdm_sriov.plugin import READY

from tests.integration.conftest import BUSYBOX
from tests.integration.engine import Engine, private_engine
from tests.integration.engines import ENGINES, engine_directory, inside, is_of, numbers
from tests.integration.images import busybox_rootfs, import_image
from trainer.tests.waiting import wait_until

VFS = 7
CONTAINERS = 50
"""How many containers start at once."""
ROOT = Path(__file__).parents[2]
NETWORK = "rdm-test-sriov"
HANGS_S = 240.0
"""Timeout in seconds, long enough for a busy machine."""


def remove_network(remove: Callable[[], object]) -> None:
    """Remove a network. Endpoints may outlive their containers for a moment."""

    def gone() -> bool:
        try:
            remove()
        except (AssertionError, RuntimeError) as error:
            if "has active endpoints" not in str(error):
                raise
            return False
        return True

    wait_until("the network is gone", gone)


class Node:
    """An engine, the plugin, and the parent interface of its VFs.

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

    def start_plugin(self, engine: str = "") -> None:
        """Start the plugin and wait until it reports that it is ready.

        Args:
            engine: socket of another engine than this node's.
        """
        before = self.log.read_text().count(READY) if self.log.exists() else 0
        options = ["--socket", self.socket, "--state", self.state, "--engine", engine or self.engine.socket]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(self.program), *map(str, options)], stdout=log, stderr=subprocess.STDOUT
            )
        wait_until("the plugin is ready", self.log.read_text, lambda log: log.count(READY) > before)

    def stop_plugin(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the plugin."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(HANGS_S)

    def docker(self, *words: object) -> str:
        """Run the engine's own docker; return its output, or raise with its error."""
        argv = [*self.engine.prefix, "docker", *map(str, words)]
        done = subprocess.run(
            argv, env=self.engine.environment, capture_output=True, text=True, check=False, timeout=HANGS_S
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.strip()

    def run(self, name: str, *options: object, network: str = NETWORK) -> str:
        """Start a container on the plugin's network; return its id."""
        return self.docker("run", "-d", "--init", "--name", name, "--network", network, *options, BUSYBOX)

    def create(self, name: str, version: str, everywhere: str = "", end: str = "", vf: str = "") -> None:
        """Create and start a container in a version of the API, with hardware addresses or a VF."""
        ends: dict[str, dict[str, Any]] = {
            NETWORK: {"IPAMConfig": {"IPv4Address": "192.169.16.100"}, "MacAddress": end}
        }
        if vf:
            ends[NETWORK]["DriverOpts"] = {VF: vf}
        spec = {
            "Image": BUSYBOX,
            "MacAddress": everywhere,
            "HostConfig": {"NetworkMode": NETWORK, "Init": True, "RestartPolicy": {"Name": "always"}},
            "NetworkingConfig": {"EndpointsConfig": ends},
        }
        api = DockerAPI(self.engine.socket)
        api._version = {**api.version(), "ApiVersion": version}
        made = api.post("/containers/create", spec, name=name)["Id"]
        api.post(f"/containers/{made}/start")

    def race(self, count: int) -> tuple[list[str], list[str]]:
        """Start containers at once; return those that run, and the errors of the others."""

        def run(name: str) -> str:
            try:
                self.run(name)
            except RuntimeError as error:
                return str(error)
            return ""

        names = [f"race{number}" for number in range(count)]
        with ThreadPoolExecutor(count) as pool:
            errors = dict(zip(names, pool.map(run, names), strict=True))
        return [name for name in names if not errors[name]], [words for words in errors.values() if words]

    def remove(self, *names: str) -> None:
        """Remove containers."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(remove_container, DockerAPI(self.engine.socket, HANGS_S)), names))

    def reserve(self, address: str) -> dict[str, Any]:
        """Reserve a VF for an address; return the plugin's answer."""
        network = self.docker("network", "inspect", "--format", "{{.Id}}", NETWORK)
        request = {"NetworkID": network, "Address": f"{address}/24"}
        found: dict[str, Any] = call_plugin(str(self.socket), RESERVE, request, HANGS_S)["Vf"]
        return found

    def speaks(self, api: str) -> bool:
        """Return whether the engine still accepts this version of its API."""
        oldest: str = self.engine.api.version()["MinAPIVersion"]
        return numbers(api) >= numbers(oldest)

    def address(self, name: str) -> str:
        """Return the hardware address of a container's interface."""
        return self.docker("exec", name, "cat", "/sys/class/net/eth0/address")

    def running(self, name: str) -> bool:
        """Return whether a container runs."""
        return self.docker("inspect", "--format", "{{.State.Running}}", name) == "true"

    def wait_back(self, name: str, address: str) -> None:
        """Wait until a container has this hardware address again, after its engine was down."""

        def seen() -> str:
            try:
                return self.address(name)
            except RuntimeError as error:  # it does not run, or not yet, even if the engine reports so
                return str(error)

        wait_until(f"{name} has {address} again", seen, lambda seen: seen == address, why=self.log.read_text)

    def promised(self) -> dict[str, Any]:
        """Return the endpoints that the plugin keeps."""
        endpoints: dict[str, Any] = json.loads((self.state / "state.json").read_text())["endpoints"]
        return endpoints


@contextmanager
def sriov_node(version: str) -> Iterator[Node]:
    """A node with an engine of one of ENGINES, a plugin and a network."""
    release = ENGINES[version]
    prefix = inside(engine_directory(release)) if release else []
    with private_engine(prefix=prefix) as engine:
        node = Node(engine)
        found = engine.api.version()["Version"]
        assert is_of(found, version), f"{release or 'the machine'} has version {found} of the engine by now"
        print(f"the engine of {release or 'the machine'} has version {found}")
        node.program.write_bytes(file_content(ROOT / "roles/lab/files", PLUGIN))
        with serving(node):
            yield node


@contextmanager
def serving(node: Node, *options: str) -> Iterator[None]:
    """A node's interface, its plugin and a network of it, made with these further options."""
    link = ["ip", "link", "add", node.parent, "type", "veth", "peer", "name", f"{node.parent}x"]
    subprocess.run(link, check=True)
    try:
        subprocess.run(["ip", "link", "set", f"{node.parent}x", "up"], check=True)
        import_image(node.engine.api, BUSYBOX, busybox_rootfs())
        node.start_plugin()
        given = ["-o", f"netdevice={node.parent}", "--subnet", "192.169.16.0/24", *options]
        node.docker("network", "create", "-d", node.driver, *given, NETWORK)
        yield
        remove_network(lambda: node.docker("network", "rm", NETWORK))
        node.stop_plugin()
        assert not node.socket.exists()
        assert not list(Path("/sys/class/net").glob(f"{node.parent}v*")), "the plugin left links"
    finally:
        if node._process is not None and node._process.poll() is None:
            node.stop_plugin(signal.SIGKILL)
        node.socket.unlink(missing_ok=True)
        subprocess.run(["ip", "link", "del", node.parent], check=True)
