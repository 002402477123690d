"""Which VF a container gets, whatever engines and plugins have died of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import GENERIC
from ansible_collections.rdm.provision.rdm_sriov.driver import Driver
from ansible_collections.rdm.provision.rdm_sriov.state import State
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    NodeVfs,
    Vf,
    VfProblem,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

NETWORK = "n" * 64


class Machine(NodeVfs):
    """VFs whose interfaces go into namespaces and come back."""

    def __init__(self, count: int = 2, ethernet: bool = True) -> None:
        self.count = count
        self.ethernet = ethernet
        self.away: set[str] = set()
        self.idle: set[str] = set()
        self.set: list[tuple[str, object]] = []

    def virtual(self, parent: str) -> list[Vf]:
        if parent.startswith("no"):
            raise VfProblem(f"there is no network interface {parent} on this node")
        return [Vf(f"{parent}.{number}", parent, number) for number in range(self.count)]

    def whole(self, name: str) -> Vf:
        if f"pci-{name}" in self.away:
            raise VfProblem(f"there is no network interface {name} on this node")
        return Vf(f"pci-{name}", name, -1)

    def interface(self, vf: Vf) -> str:
        return "" if vf.key in self.away | self.idle else f"if-{vf.key}"

    def is_idle(self, vf: Vf) -> bool:
        return vf.key in self.idle

    def address(self, interface: str) -> str:
        return f"mac-of-{interface}"

    def is_ethernet(self, interface: str) -> bool:
        return self.ethernet

    def up(self, interface: str) -> None:
        self.set.append((interface, "up"))

    def set_mtu(self, interface: str, mtu: int) -> None:
        self.set.append((interface, mtu))

    def partition(self, vf: Vf, pkey: int, name: str) -> str:
        assert not pkey, "test_partitions.py has these"
        return ""

    def isolate(self, vf: Vf, vlan: int, trusted: bool) -> None:
        self.set.append((vf.key, (vlan, trusted)))


class Plugin:
    """A driver, as an engine sees it."""

    def __init__(self, directory: Path, machine: Machine) -> None:
        self.machine = machine
        self.directory = directory
        self.known: dict[str, dict[str, str]] = {}
        self.given: dict[str, str] = {}
        self.now = 1e9
        self.waits = 0
        self.back: dict[int, str] = {}
        self.start()

    def start(self) -> None:
        """Begin with what the plugin before has kept."""
        self.state = State(str(self.directory))
        clock, sleep = (lambda: self.now), self.wait
        self.driver = Driver(self.machine, self.state, lambda: self.known, clock, sleep=sleep)

    def wait(self, seconds: float) -> None:
        """Let the kernel return the VF that is due after so many waits."""
        self.waits += 1
        self.machine.away.discard(self.back.get(self.waits, ""))

    def call(self, name: str, **request: Any) -> dict[str, Any]:
        return self.driver.answer(f"NetworkDriver.{name}", request)

    def activate(self) -> None:
        self.driver.answer("Plugin.Activate", {})

    def network(self, name: str = NETWORK, **options: str) -> None:
        given_options = {"netdevice": "ib0", **options}
        pools = [{"Pool": "192.169.16.0/24"}]
        self.call("CreateNetwork", NetworkID=name, Options={GENERIC: given_options}, IPv4Data=pools)

    def container(
        self, name: str, address: str = "", network: str = NETWORK, mac: str = "", bound: str = ""
    ) -> str:
        """Start a container; return its VF."""
        interface = {"Address": address, "MacAddress": mac}
        options = {"rdm.provision.vf": bound} if bound else {}
        self.call("CreateEndpoint", NetworkID=network, EndpointID=name, Interface=interface, Options=options)
        self.call("Join", NetworkID=network, EndpointID=name, SandboxKey="/var/run/docker/netns/x")
        self.given[name] = self.state.endpoints[name].vf
        self.machine.away.add(self.given[name])
        return self.given[name]

    def reserve(self, address: str, network: str = NETWORK) -> dict[str, Any]:
        """Reserve a VF; return its description."""
        answer = self.driver.answer("RdmSriov.Reserve", {"NetworkID": network, "Address": address})
        found: dict[str, Any] = answer["Vf"]
        # A controller before 0.6.0 reads the other one.
        assert answer["Function"] == {**found, "parent": found["pf"]}
        return found

    def end(self, name: str) -> None:
        """Stop a container, as an engine does that lives."""
        self.call("Leave", NetworkID=NETWORK, EndpointID=name)
        self.machine.away.discard(self.given[name])
        self.call("DeleteEndpoint", NetworkID=NETWORK, EndpointID=name)


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """A plugin with two VFs and a network."""
    made = Plugin(tmp_path, Machine())
    made.network()
    return made


def test_each_container_gets_a_vf_and_then_there_is_none(plugin: Plugin) -> None:
    assert {plugin.container("a"), plugin.container("b")} == {"ib0.0", "ib0.1"}
    with pytest.raises(VfProblem, match="no virtual function of ib0 is free: containers have all 2"):
        plugin.container("c")
    plugin.end("a")
    assert plugin.container("c") == "ib0.0"


def test_a_container_that_comes_back_gets_the_vf_that_it_had(plugin: Plugin) -> None:
    plugin.container("a", "192.169.16.100/24")
    second = plugin.container("b", "192.169.16.101/24")
    plugin.end("a")
    plugin.end("b")
    assert plugin.container("b2", "192.169.16.101/24") == second
    plugin.end("b2")
    plugin.start()
    assert plugin.container("b3", "192.169.16.101/24") == second


def test_unknown_container_takes_no_vf_of_others(plugin: Plugin) -> None:
    first = plugin.container("a", "192.169.16.100/24")
    plugin.end("a")
    assert plugin.container("new", "192.169.16.150/24") != first


def test_assigned_vf_is_taken_before_its_link_has_moved(plugin: Plugin) -> None:
    interface: dict[str, Any] = {"Interface": {}}
    plugin.call("CreateEndpoint", NetworkID=NETWORK, EndpointID="a", **interface)
    plugin.call("CreateEndpoint", NetworkID=NETWORK, EndpointID="b", **interface)
    assert {one.vf for one in plugin.state.endpoints.values()} == {"ib0.0", "ib0.1"}


def test_killed_engine_leaves_no_vf_taken(plugin: Plugin) -> None:
    plugin.container("a")
    plugin.container("b")
    # Its containers ended with it, and their interfaces came back.
    plugin.machine.away.clear()
    plugin.activate()
    assert {plugin.container("a2"), plugin.container("b2")} == {"ib0.0", "ib0.1"}
    assert set(plugin.state.endpoints) == {"a2", "b2"}


@pytest.mark.parametrize("bound", [False, True])
def test_a_container_waits_for_the_vf_that_the_kernel_has_not_returned_yet(
    plugin: Plugin, bound: bool
) -> None:
    mine = plugin.container("a", "192.169.16.100/24")
    plugin.activate()  # the engine was killed
    plugin.back = {3: mine}
    assert plugin.container("a2", "192.169.16.100/24", bound=mine if bound else "") == mine
    assert plugin.waits == 3


def test_a_container_does_not_wait_longer_than_some_seconds(plugin: Plugin) -> None:
    mine = plugin.container("a", "192.169.16.100/24")
    plugin.activate()
    with pytest.raises(VfProblem, match="whose RDMA devices"):
        plugin.container("a2", "192.169.16.100/24", bound=mine)
    assert plugin.waits == 100
    assert plugin.container("a3", "192.169.16.100/24") != mine
    assert plugin.waits == 200


def test_a_container_does_not_wait_for_a_vf_that_another_one_has(plugin: Plugin) -> None:
    mine = plugin.container("a", "192.169.16.100/24")
    plugin.end("a")
    plugin.container("b", "192.169.16.101/24", bound=mine)
    for restart in (plugin.activate, plugin.start):
        restart()
        with pytest.raises(VfProblem, match="whose RDMA devices"):
            plugin.container("a2", "192.169.16.100/24", bound=mine)
    plugin.machine.idle.add(plugin.container("a3", "192.169.16.100/24"))
    plugin.end("a3")
    with pytest.raises(VfProblem, match="no driver"):
        plugin.container("a4", "192.169.16.100/24")
    assert plugin.waits == 0


def test_vf_of_a_container_that_outlives_its_engine_is_not_reassigned(plugin: Plugin) -> None:
    kept = plugin.container("a")
    plugin.activate()
    assert plugin.container("b") != kept
    with pytest.raises(VfProblem, match="all 2"):
        plugin.container("c")


def test_vf_taken_outside_the_plugin_is_not_assigned(plugin: Plugin) -> None:
    plugin.machine.away.add("ib0.0")
    assert plugin.container("a") == "ib0.1"


def test_the_answer_to_join_has_no_gateway(plugin: Plugin) -> None:
    plugin.call("CreateEndpoint", NetworkID=NETWORK, EndpointID="a", Interface={})
    assert plugin.call("Join", NetworkID=NETWORK, EndpointID="a") == {
        "InterfaceName": {"SrcName": "if-ib0.0", "DstPrefix": "eth"},
        "DisableGatewayService": True,
    }


def test_ethernet_vf_gets_the_containers_mac(plugin: Plugin) -> None:
    answer = plugin.call("CreateEndpoint", NetworkID=NETWORK, EndpointID="a", Interface={})
    assert answer == {"Interface": {"MacAddress": "mac-of-if-ib0.0"}}


def test_the_address_of_an_infiniband_vf_is_the_cards(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, Machine(ethernet=False))
    plugin.network()
    assert plugin.call("CreateEndpoint", NetworkID=NETWORK, EndpointID="a", Interface={}) == {"Interface": {}}
    assert ("ib0.0", (0, False)) not in plugin.machine.set
    with pytest.raises(VfProblem, match="vlan 7 on ib0: InfiniBand has partitions"):
        plugin.network("other", vlan="7")


def test_a_requested_address_chooses_the_vf(plugin: Plugin) -> None:
    assert plugin.container("a", mac="MAC-of-if-ib0.1") == "ib0.1"
    with pytest.raises(VfProblem, match="no free virtual function of ib0 has the address mac"):
        plugin.container("b", mac="mac-of-if-ib0.1")


def test_vlan_trust_and_mtu_are_set_on_the_assigned_vf(plugin: Plugin) -> None:
    plugin.network("other", vlan="100", privileged="1", mtu="4000")
    plugin.container("a", network="other")
    assert plugin.machine.set[-2:] == [("ib0.0", (100, True)), ("if-ib0.0", 4000)]


def test_two_networks_on_one_pf_never_share_a_vf(plugin: Plugin) -> None:
    plugin.network("other", vlan="100")
    assert plugin.container("a") != plugin.container("b", network="other")


def test_several_pfs_are_one_pool(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, Machine(count=1))
    plugin.network(netdevice="ib0,ib1")
    assert [plugin.container("a"), plugin.container("b")] == ["ib0.0", "ib1.0"]


def test_whole_interface_is_assigned_once(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, Machine())
    plugin.network(mode="passthrough")
    assert plugin.container("a") == "pci-ib0"
    with pytest.raises(VfProblem, match="no interface of ib0 is free: containers have the one"):
        plugin.container("b")
    plugin.start()
    plugin.end("a")
    assert plugin.container("b") == "pci-ib0"


def test_deleting_a_network_takes_nothing_from_others(plugin: Plugin) -> None:
    plugin.network("other")
    kept = plugin.container("a")
    plugin.call("DeleteNetwork", NetworkID="other")
    plugin.call("DeleteNetwork", NetworkID="other")
    assert plugin.machine.away == {kept}
    assert plugin.container("b") != kept


def test_a_plugin_without_its_state_queries_the_engine(plugin: Plugin, tmp_path: Path) -> None:
    plugin.container("a")
    for file in tmp_path.iterdir():
        file.unlink()
    plugin.start()
    with pytest.raises(VfProblem, match="network nnnnnnnnnnnn is unknown here"):
        plugin.container("b")
    plugin.known = {NETWORK: {"netdevice": "ib0"}}
    assert plugin.container("b") == "ib0.1"


@pytest.mark.parametrize(
    "content", ["", "{", '{"networks": {', "[]", '{"networks": {}, "endpoints": 1}', "\0"]
)
def test_unreadable_state_is_moved_aside(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    state = State(str(tmp_path))
    assert "state.json.broken" in state.lost
    assert (tmp_path / "state.json.broken").read_text() == content
    assert state.networks == {}


def test_state_survives_a_restart(plugin: Plugin) -> None:
    plugin.network("other", vlan="3", prefix="ib", mtu="4000", privileged="1")
    plugin.container("a", "192.169.16.100/24", network="other")
    plugin.reserve("192.169.16.101/24")
    before = plugin.state._all()[:-1]
    plugin.start()
    assert plugin.state._all()[:-1] == before


def test_state_of_the_previous_release_is_read(plugin: Plugin) -> None:
    plugin.container("a", "192.169.16.100/24")
    before, path = plugin.state._all()[:-1], plugin.directory / "state.json"
    former = path.read_text().replace('"pfs"', '"parents"').replace('"vf"', '"function"')
    assert ('"parents"' in former, '"function"' in former) == (True, True)
    path.write_text(former)
    plugin.start()
    assert (plugin.state.lost, plugin.state._all()[:-1]) == ("", before)


def block(plugin: Plugin) -> None:
    """Let the plugin write its state no more."""
    (plugin.directory / "state.json").unlink(missing_ok=True)
    (plugin.directory / "state.json").mkdir()


def test_a_full_disk_changes_nothing(plugin: Plugin) -> None:
    before = plugin.state._all()
    block(plugin)
    with pytest.raises(VfProblem, match="cannot write"):
        plugin.container("a", "192.169.16.100/24")
    with pytest.raises(VfProblem, match="cannot write"):
        plugin.reserve("192.169.16.100/24")
    with pytest.raises(VfProblem, match="cannot write"):
        plugin.network("other")
    assert plugin.state._all() == before


def test_endpoint_that_ends_on_a_full_disk_holds_no_vf(plugin: Plugin) -> None:
    plugin.container("a")
    plugin.container("b")
    block(plugin)
    plugin.end("a")
    (plugin.directory / "state.json").rmdir()
    assert plugin.container("c") == "ib0.0"


def test_endpoint_that_ended_without_the_plugin_holds_no_vf(plugin: Plugin) -> None:
    plugin.container("a")
    kept = plugin.container("b")
    plugin.machine.away.discard(plugin.given["a"])
    plugin.start()
    assert plugin.container("c") != kept
    assert set(plugin.state.endpoints) == {"b", "c"}


def test_a_reserved_vf_waits_for_its_address(plugin: Plugin) -> None:
    assert plugin.reserve("192.169.16.100/24") == {
        "pci": "ib0.0",
        "pf": "ib0",
        "index": 0,
        "interface": "if-ib0.0",
        "mac": "mac-of-if-ib0.0",
    }
    assert plugin.container("other", "192.169.16.101/24") == "ib0.1"
    with pytest.raises(
        VfProblem, match="containers have 1 of 2, and 1 wait for containers that are to start"
    ):
        plugin.container("third", "192.169.16.102/24")
    plugin.start()
    assert plugin.container("a", "192.169.16.100/24") == "ib0.0"
    assert plugin.state.reserved == {}
    plugin.end("a")
    assert plugin.container("third", "192.169.16.102/24") == "ib0.0"


def test_reservations_are_distinct_and_repeatable(plugin: Plugin) -> None:
    plugin.network("other", vlan="100")
    first, second = plugin.reserve("192.169.16.100/24"), plugin.reserve("192.169.16.100/24", "other")
    assert first["pci"] != second["pci"]
    assert plugin.reserve("192.169.16.100/24") == first
    with pytest.raises(VfProblem, match="no virtual function of ib0 is free"):
        plugin.reserve("192.169.16.101/24")


def test_running_container_has_its_vf_reserved(plugin: Plugin) -> None:
    plugin.container("a", "192.169.16.100/24")
    for _ in range(2):
        assert plugin.reserve("192.169.16.100/24") == {
            "pci": "ib0.0",
            "pf": "ib0",
            "index": 0,
            "interface": "",
            "mac": "mac-of-if-ib0.0",
        }
        plugin.start()
    assert plugin.state.reserved == {}


def test_reserved_vf_taken_by_others_is_not_assigned_and_another_can_be_reserved(plugin: Plugin) -> None:
    plugin.reserve("192.169.16.100/24")
    plugin.machine.away.add("ib0.0")
    with pytest.raises(VfProblem, match=r"ib0\.0 of ib0, which was reserved for 192.169.16.100/24, is"):
        plugin.container("a", "192.169.16.100/24")
    assert plugin.reserve("192.169.16.100/24")["pci"] == "ib0.1"
    assert plugin.container("a", "192.169.16.100/24") == "ib0.1"


def test_the_hardware_address_of_a_reserved_vf_gets_it(plugin: Plugin) -> None:
    mac = plugin.reserve("192.169.16.100/24")["mac"]
    assert plugin.container("a", "192.169.16.7/24", mac=mac) == "ib0.0"
    assert plugin.state.reserved == {}


def test_a_container_gets_the_vf_whose_devices_it_was_made_with_or_none(plugin: Plugin) -> None:
    mine = plugin.reserve("192.169.16.100/24")["pci"]
    assert plugin.container("a", "192.169.16.100/24", bound=mine) == mine
    plugin.end("a")
    former = {"rdm.provision.function": "ib0.7"}  # of a container that a release before 0.6.0 created
    with pytest.raises(VfProblem, match=r"^ib0\.7, whose RDMA devices"):
        plugin.call("CreateEndpoint", NetworkID=NETWORK, EndpointID="b", Interface={}, Options=former)
    # It was stopped, and another container took its VF.
    plugin.machine.away.add("ib0.1")
    assert plugin.container("other", "192.169.16.101/24") == mine
    plugin.machine.away.discard("ib0.1")
    before = plugin.state._all()
    with pytest.raises(VfProblem, match=rf"{mine}, whose RDMA devices .*: rdm-provision up recreates"):
        plugin.container("a2", "192.169.16.100/24", bound=mine)
    assert plugin.state._all() == before
    # Recreated, it has another; one that is made by hand gets what is free.
    again = plugin.reserve("192.169.16.100/24")["pci"]
    assert again != mine
    assert plugin.container("a3", "192.169.16.100/24", bound=again) == again
    plugin.end("a3")
    assert plugin.container("by hand", "192.169.16.100/24") == again


def test_container_does_not_take_a_vf_reserved_for_another_address(plugin: Plugin) -> None:
    waits = plugin.reserve("192.169.16.101/24")["pci"]
    with pytest.raises(VfProblem, match="whose RDMA devices"):
        plugin.container("a", "192.169.16.100/24", bound=waits)
    assert plugin.container("b", "192.169.16.101/24", bound=waits) == waits


def test_reservation_expires(plugin: Plugin) -> None:
    plugin.reserve("192.169.16.100/24")
    plugin.reserve("192.169.16.101/24")
    plugin.now += 601
    assert plugin.container("a", "192.169.16.102/24")
    assert plugin.container("b", "192.169.16.103/24")


@pytest.mark.parametrize("address", ["", "192.169.16.256/24", "one", "192.169.16.100/33"])
def test_reservation_needs_an_address(plugin: Plugin, address: str) -> None:
    with pytest.raises(VfProblem, match="Address"):
        plugin.reserve(address)


def test_whole_interface_can_be_reserved(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, Machine())
    plugin.network(mode="passthrough")
    assert plugin.reserve("192.169.16.100/24")["index"] == -1


def test_a_vf_that_vanished_is_named(plugin: Plugin) -> None:
    plugin.call("CreateEndpoint", NetworkID=NETWORK, EndpointID="a", Interface={})
    plugin.machine.count = 0
    with pytest.raises(VfProblem, match=r"ib0\.0, which this container was to get, is gone"):
        plugin.call("Join", NetworkID=NETWORK, EndpointID="a")


def test_vf_without_a_driver_is_not_assigned_and_blocks_no_other(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path, Machine(3))
    plugin.network()
    assert plugin.container("a", "192.169.16.100/24") == "ib0.0"
    assert plugin.container("b", "192.169.16.101/24") == "ib0.1"
    plugin.machine.idle.add("ib0.0")
    plugin.end("a")
    assert plugin.container("a2", "192.169.16.100/24") == "ib0.2"
    assert plugin.reserve("192.169.16.101/24")["pci"] == "ib0.1"
    refused = r"no virtual function of ib0 is free: containers have all 2, and ib0\.0 has no driver$"
    with pytest.raises(VfProblem, match=refused):
        plugin.container("c")
    plugin.machine.idle.clear()
    assert plugin.container("c") == "ib0.0"


def test_a_vf_that_loses_its_driver_before_its_container_has_it_is_named(plugin: Plugin) -> None:
    plugin.call("CreateEndpoint", NetworkID=NETWORK, EndpointID="a", Interface={})
    plugin.machine.idle.add("ib0.0")
    with pytest.raises(VfProblem, match=r"ib0\.0, which this container was to get, is gone"):
        plugin.call("Join", NetworkID=NETWORK, EndpointID="a")


@pytest.mark.parametrize(
    ("call", "request_", "words"),
    [
        ("CreateNetwork", {}, "no NetworkID"),
        ("CreateNetwork", {"NetworkID": 7}, "no NetworkID"),
        ("CreateNetwork", {"NetworkID": "x", "Options": []}, "netdevice is missing"),
        ("CreateNetwork", {"NetworkID": "x", "Options": 3}, "Options of the request is no object"),
        ("CreateNetwork", {"NetworkID": "x", "Options": {GENERIC: {"netdevice": "ib0"}}}, "--subnet"),
        ("CreateEndpoint", {"NetworkID": NETWORK, "EndpointID": "a", "Interface": "x"}, "Interface of the"),
        ("Join", {"EndpointID": "never"}, "endpoint never is unknown"),
    ],
)
def test_a_request_that_lacks_something_gets_its_name(
    plugin: Plugin, call: str, request_: dict[str, Any], words: str
) -> None:
    with pytest.raises(VfProblem, match=words):
        plugin.call(call, **request_)


class Life(RuleBasedStateMachine):
    """Containers, engines and plugins that come and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.plugin = Plugin(Path(self.directory.name), Machine(count=3))
        self.plugin.network()
        self.running: dict[str, str] = {}
        self.count = 0

    def teardown(self) -> None:
        self.directory.cleanup()

    @rule(address=st.sampled_from(["", "10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24", "10.0.0.4/24"]))
    def start_container(self, address: str) -> None:
        self.count += 1
        name = f"c{self.count}"
        if len(self.running) == 3:
            with pytest.raises(VfProblem):
                self.plugin.container(name, address)
        else:
            key = self.plugin.container(name, address)
            assert key not in self.running.values()
            self.running[name] = key

    @rule(address=st.sampled_from(["10.0.0.5/24", "10.0.0.6/24"]))
    def reserve_and_start(self, address: str) -> None:
        if len(self.running) == 3:
            return
        key = self.plugin.reserve(address)["pci"]
        has = [name for name, one in self.plugin.state.endpoints.items() if one.address == address]
        assert key not in {one for name, one in self.running.items() if name not in has}
        if not has:
            self.count += 1
            self.running[f"c{self.count}"] = self.plugin.container(f"c{self.count}", address)
            assert self.running[f"c{self.count}"] == key

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_container(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.plugin.end(name)
        del self.running[name]

    @rule()
    def restart_plugin(self) -> None:
        self.plugin.start()

    @rule()
    def kill_engine(self) -> None:
        self.running.clear()
        self.plugin.machine.away.clear()
        self.plugin.activate()

    @rule()
    def restart_engine_under_living_containers(self) -> None:
        self.plugin.activate()

    @rule()
    def lose_the_state(self) -> None:
        (Path(self.directory.name) / "state.json").write_text("{")
        self.plugin.known = {NETWORK: {"netdevice": "ib0"}}
        self.plugin.start()

    @invariant()
    def nothing_leaks(self) -> None:
        assert self.plugin.machine.away == set(self.running.values())


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
