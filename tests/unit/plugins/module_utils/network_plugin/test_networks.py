"""A plugin without its state that cannot reach the engine is found, and gets its networks again."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.zip_program import digest
from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_CLUSTER
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerUnavailable
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    PluginProblem,
    call_plugin,
)
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin import installation, networks, unit
from ansible_collections.rdm.provision.plugins.module_utils.state import state_file
from ansible_collections.rdm.provision.plugins.modules import container_ready, node_facts, sriov_plugin
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_programs import (
    program,
    program_argument,
)
from ansible_collections.rdm.provision.rdm_sriov.driver import Driver
from ansible_collections.rdm.provision.rdm_sriov.server import Server
from ansible_collections.rdm.provision.rdm_sriov.state import State
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    NodeVfs,
    Vf,
    VfProblem,
)

from tests.unit.plugins.modules.running import Failed, run_module

OURS = {LABEL_CLUSTER: "rdm"}


class Card(NodeVfs):
    """One card with a VF."""

    def virtual(self, parent: str) -> list[Vf]:
        if parent != "ib0":
            raise VfProblem(f"there is no network interface {parent} on this node")
        return [Vf("ib0.0", "ib0", 0)]

    def interface(self, vf: Vf) -> str:
        return vf.key

    def up(self, interface: str) -> None:
        pass

    def is_ethernet(self, interface: str) -> bool:
        return True

    def isolate(self, vf: Vf, vlan: int, trusted: bool) -> None:
        pass


class Engine:
    """The networks that an engine knows."""

    def __init__(self) -> None:
        self.networks: list[dict[str, Any]] = []

    def get(self, path: str, **query: Any) -> Any:
        if path == "/networks":
            # Some engines' lists lack fields, which are read from the network itself.
            chosen = query.get("filters", {}).get("driver")
            return [
                {key: one[key] for key in ("Id", "Name", "Driver", "Labels")}
                for one in self.networks
                if not chosen or one["Driver"] in chosen
            ]
        if path.startswith("/networks/"):
            return next(one for one in self.networks if one["Id"] == path.rpartition("/")[2])
        return []

    def network(self, name: str, driver: str = "p", labels: dict[str, str] = OURS, **options: str) -> None:
        self.networks.append(
            {
                "Id": name * 8,
                "Name": name,
                "Driver": driver,
                "Labels": labels,
                "Options": {"netdevice": "ib0", **options},
                "IPAM": {"Config": [{"Subnet": "fd00::/64"}, {"Subnet": "192.169.16.0/24"}]},
            }
        )


class Plugin:
    """A plugin without state and without an engine to query."""

    def __init__(self, directory: Path) -> None:
        self.socket = str(directory / "p.sock")
        self.state = State(str(directory))
        driver = Driver(Card(), self.state, dict, program="sha256:1")
        self.server = Server(self.socket, driver)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    """The plugin at a short path, as a socket requires."""
    with tempfile.TemporaryDirectory(prefix="rdm-sriov-", dir="/tmp") as path:
        made = Plugin(Path(path))
        yield made
        made.end()


@pytest.fixture
def engine() -> Engine:
    """An engine with a network of the plugin's driver, and another."""
    engine = Engine()
    engine.network("ibnet", vlan="7", privileged="1")
    engine.network("bridged", "bridge")
    return engine


def names(engine: Engine, plugin: Plugin) -> list[str]:
    return [one["Name"] for one in networks.lacking(engine, plugin.socket)]  # type: ignore[arg-type]


def restore(engine: Engine, plugin: Plugin) -> networks.Restored:
    return networks.restore(engine, plugin.socket, "rdm")  # type: ignore[arg-type]


def test_plugin_gets_its_missing_networks_unchanged(plugin: Plugin, engine: Engine) -> None:
    body = {"NetworkID": "ibnet" * 8, "EndpointID": "e", "Interface": {"Address": "192.169.16.100/24"}}
    with pytest.raises(PluginProblem, match="unknown here and the engine does not say what it was"):
        call_plugin(plugin.socket, "NetworkDriver.CreateEndpoint", body)
    assert names(engine, plugin) == ["ibnet"]
    assert restore(engine, plugin) == (["ibnet"], [])
    [network] = plugin.state.networks.values()
    assert (network.pfs, network.vlan, network.privileged) == (("ib0",), 7, True)
    assert names(engine, plugin) == []
    assert restore(engine, plugin) == ([], [])
    call_plugin(plugin.socket, "NetworkDriver.CreateEndpoint", body)


def test_invalid_network_of_ours_is_refused_and_a_foreign_one_reported(
    plugin: Plugin, engine: Engine
) -> None:
    engine.network("theirs", labels={}, netdevice="gone0")
    assert restore(engine, plugin) == (
        ["ibnet"],
        [
            "the network theirs cannot be made known to the plugin again: "
            f"{plugin.socket} answers: there is no network interface gone0 on this node"
        ],
    )
    engine.network("mine", netdevice="gone0")
    with pytest.raises(PluginProblem, match="the network mine cannot be made known"):
        restore(engine, plugin)


def test_gathering_finds_missing_networks_and_a_dead_plugin(plugin: Plugin, engine: Engine) -> None:
    watch: dict[str, Any] = {
        "cluster": "rdm",
        "vfs": [],
        "config_dirs": [],
        "job_directory": "",
        "system": False,
        "images": [],
        "archives": [],
        "users": [],
        "paths": {},
        "plugin": {"program": "/nowhere", "socket": plugin.socket, "state": "/nowhere"},
    }

    def drift() -> list[str]:
        now = state_file.observe(watch, "", engine)  # type: ignore[arg-type]
        return state_file.drift(right, now).get("sriov", [])

    restore(engine, plugin)
    right = state_file.observe(watch, "", engine)  # type: ignore[arg-type]
    assert drift() == []
    plugin.state.networks.clear()
    assert drift() == [f"the list of networks of the plugin at {plugin.socket} is without ibnet, not whole"]
    plugin.end()
    assert drift() == [f"the plugin at {plugin.socket} does not answer"]


def test_other_server_at_the_plugins_socket_is_detected(plugin: Plugin, engine: Engine) -> None:
    plugin.server.driver._calls.pop("RdmSriov.Info")
    watch = {"program": "/nowhere", "socket": plugin.socket, "state": "/nowhere"}
    assert installation.observe(watch)[f"the plugin at {plugin.socket}"] == installation.FOREIGN
    assert installation.facts(plugin.socket)["served_by"] == "another"
    assert names(engine, plugin) == []


def test_server_of_the_plugins_socket_is_gathered(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    sriov = {"interfaces": [], "socket": plugin.socket}

    def seen(**changes: str) -> dict[str, Any]:
        facts: dict[str, Any] = run_module(node_facts, {"sriov": {**sriov, **changes}})["node"]
        found: dict[str, Any] = facts["network_plugin"]
        return found

    assert (seen()["socket"], seen()["served_by"]) == (plugin.socket, "rdm-sriov")
    assert seen(socket="")["served_by"] == ""
    monkeypatch.setattr(plugin.server.driver, "_calls", {})
    assert seen()["served_by"] == "another"
    # A unit's plugin that hangs is restarted, not refused.
    monkeypatch.setattr(unit, "socket_of", lambda _: plugin.socket)
    monkeypatch.setattr(installation, "active", lambda: True)
    assert seen()["served_by"] == "rdm-sriov"
    plugin.end()
    assert seen()["served_by"] == ""


def test_the_plugin_in_a_container_is_sent_networks_once_it_is_ready(
    plugin: Plugin, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_ready, "DockerAPI", lambda: engine)
    monkeypatch.setattr(container_ready, "wait_ready", lambda *_: None)
    params = {"name": "rdm-sriov-plugin", "cluster": "rdm", "socket": plugin.socket}
    result = run_module(container_ready, params, check=True)
    assert (result["changed"], result["taught"]) == (True, ["ibnet"])
    result = run_module(container_ready, params)
    assert (result["changed"], result["taught"]) == (True, ["ibnet"])
    result = run_module(container_ready, params)
    assert (result["changed"], result["taught"]) == (False, [])
    engine.network("mine", netdevice="gone0")
    with pytest.raises(Failed, match="there is no network interface gone0"):
        run_module(container_ready, params)


def test_plugin_of_a_unit_gets_its_networks_if_an_engine_is_up(
    plugin: Plugin, engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {
        "active": lambda: True,
        "enabled": lambda _: True,
        "control": lambda *_: None,
        "running": lambda _: digest(program("plugin")),
        "wait": lambda *_: None,
    }.items():
        monkeypatch.setattr(installation, name, value)
    params = {
        "cluster": "rdm",
        "run_as": "unit",
        "socket": plugin.socket,
        "program": str(tmp_path / "lib/rdm-sriov"),
        "unit": str(tmp_path / "rdm-sriov.service"),
        "state_directory": str(tmp_path / "state"),
        "packed": program_argument("plugin"),
    }

    def silent(*_: object, **_more: object) -> None:
        raise DockerUnavailable("no engine")

    monkeypatch.setattr(sriov_plugin, "DockerAPI", lambda _: engine)
    with monkeypatch.context() as down:
        down.setattr(engine, "get", silent)
        assert run_module(sriov_plugin, params)["taught"] == []
    result = run_module(sriov_plugin, params, check=True)
    assert (result["changed"], result["taught"]) == (True, ["ibnet"])
    assert run_module(sriov_plugin, params)["taught"] == ["ibnet"]
    result = run_module(sriov_plugin, params)
    assert (result["changed"], result["taught"]) == (False, [])
