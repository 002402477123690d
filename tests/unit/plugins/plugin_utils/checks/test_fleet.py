"""Nodes that differ from the others are named, equal ones together; equal nodes give no warning."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.hardware import rdma_tools
from ansible_collections.rdm.provision.plugins.modules.node_facts import node_facts
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.fleet import differences
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import sentences
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.sysfs.build import build

Fleet = dict[str, Any]


def _ready(tree: Path) -> dict[str, Any]:
    build("sriov", tree)
    wanted = {"interfaces": ["ib0"], "vfs": 2}
    found = node_facts(str(tree / "sys"), str(tree / "dev"), str(tree / "docker.sock"), sriov=wanted)
    return {key: found[key] for key in ("infiniband", "sriov", "fabric_interfaces", "rdma")}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rdma_tools, "find_program", lambda *_: "")
        return _ready(tmp_path_factory.mktemp("ready"))


def fleet(ready: dict[str, Any], count: int) -> Fleet:
    return {f"n{number}": copy.deepcopy(ready) for number in range(count)}


def slow_link(facts: dict[str, Any]) -> None:
    facts["infiniband"][0]["ports"][0]["rate"] = "50 Gb/sec (1X HDR)"


def slow_function(facts: dict[str, Any]) -> None:
    facts["infiniband"][2]["ports"][0]["rate"] = "100 Gb/sec (2X HDR)"


def old_firmware(facts: dict[str, Any]) -> None:
    facts["infiniband"][0]["firmware"] = "20.31.1014"


def other_adapter(facts: dict[str, Any]) -> None:
    facts["infiniband"][0].update(type="MT4119", board_id="MT_0000000008", firmware="16.35.2000")


def other_driver(facts: dict[str, Any]) -> None:
    facts["rdma"]["ofed"] = True
    facts["infiniband"][0]["driver_version"] = "24.10-0.7.0"


def exclusive(facts: dict[str, Any]) -> None:
    facts["rdma"]["netns_mode"] = "exclusive"


FAULTS = {
    slow_link: "link: the rate of ib0 is 50 Gb/sec (1X HDR), and the {others} others have 200 Gb/sec",
    slow_function: "link: the rate of the VFs of ib0 is 100 Gb/sec (2X HDR), and",
    old_firmware: "firmware: the version in ib0 is 20.31.1014, and the {others} others have 20.35.2000",
    other_adapter: "host: the adapter of ib0 is MT4119 MT_0000000008, and",
    other_driver: "driver: the one of ib0 is mlx5_core 24.10-0.7.0 of OFED, and the {others} others have",
    exclusive: "driver: the mode of RDMA devices in network namespaces is exclusive, and",
}


def test_equal_nodes_give_no_warning(ready: dict[str, Any]) -> None:
    assert differences(fleet(ready, 50)) == []
    assert differences({}) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_outlier_is_named_with_the_others_value(ready: dict[str, Any], fault: Any) -> None:
    nodes = fleet(ready, 7)
    fault(nodes["n3"])
    (line,) = sentences(differences(nodes))
    assert line.startswith("n3: " + FAULTS[fault].format(others=6))


@given(st.data())
def test_only_nodes_that_differ_are_named(ready: dict[str, Any], data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 40))
    nodes = fleet(ready, count)
    outliers = data.draw(st.sets(st.sampled_from(list(nodes)), max_size=(count - 1) // 2))
    fault = data.draw(st.sampled_from(list(FAULTS)))
    for name in outliers:
        fault(nodes[name])
    found = differences(nodes)
    assert {problem.node for problem in found} == outliers
    assert len(sentences(found)) == (1 if outliers else 0)


def test_the_hint_about_modes_is_accepted(ready: dict[str, Any]) -> None:
    nodes = fleet(ready, 3)
    for name in ("n0", "n1"):  # though most have the other
        exclusive(nodes[name])
    (line,) = sentences(differences(nodes))
    assert "set shared on all (rdma system show; rdma system set netns shared, and" in line


def test_halves_are_distinguished_in_one_sentence(ready: dict[str, Any]) -> None:
    nodes = fleet(ready, 4)
    for name in ("n0", "n1"):
        old_firmware(nodes[name])
    (line,) = sentences(differences(nodes))
    assert line.startswith(
        "firmware: the nodes differ in the version in ib0: 20.31.1014 on n0, n1; 20.35.2000 on n2, n3: burn"
    )


def renamed(facts: dict[str, Any], name: str) -> dict[str, Any]:
    """The same node, with another name of the interface."""
    facts["fabric_interfaces"][0]["name"] = name
    facts["sriov"][0]["pf"] = name
    facts["infiniband"][0]["netdevs"] = [name]
    return facts


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault is not exclusive])
def test_nodes_are_compared_by_rail_with_any_interface_names(ready: dict[str, Any], fault: Any) -> None:
    nodes: Fleet = {name: renamed(facts, f"ibp{name}") for name, facts in fleet(ready, 7).items()}
    assert differences(nodes) == []
    fault(nodes["n3"])
    (line,) = sentences(differences(nodes))
    assert line.startswith("n3: " + FAULTS[fault].format(others=6).replace("ib0", "ibpn3"))


def test_halves_with_names_of_their_own_are_distinguished_in_one_sentence(ready: dict[str, Any]) -> None:
    nodes = fleet(ready, 4)
    for name in ("n0", "n1"):
        old_firmware(renamed(nodes[name], "ibp65s0"))
    (line,) = sentences(differences(nodes))
    message = "20.31.1014 on n0, n1; 20.35.2000 on n2, n3: burn"
    assert line.startswith(f"firmware: the nodes differ in the version in ibp65s0, ib0: {message}")


def test_one_rail_is_not_compared_with_another(ready: dict[str, Any]) -> None:
    nodes = fleet(ready, 3)
    for facts in nodes.values():
        second = copy.deepcopy(facts["infiniband"][0])
        second.update(name="mlx5_9", netdevs=["ib9"], firmware="20.31.1014")
        facts["infiniband"].append(second)
        facts["fabric_interfaces"].append({**facts["fabric_interfaces"][0], "name": "ib9", "rail": 1})
    assert differences(nodes) == []
    # What is left of one without its first interface is still its second.
    del nodes["n1"]["fabric_interfaces"][0]
    assert differences(nodes) == []


def test_an_interface_that_is_missing_leaves_the_others_on_their_rails(tmp_path: Path) -> None:
    build("sriov", tmp_path)
    wanted = {"interfaces": ["ib7", "ib0"], "vfs": 0}
    found = node_facts(
        str(tmp_path / "sys"), str(tmp_path / "dev"), str(tmp_path / "docker.sock"), sriov=wanted
    )
    assert [(one["name"], one["rail"]) for one in found["fabric_interfaces"]] == [("ib0", 1)]


def test_a_port_that_is_down_is_not_compared_by_its_rate(ready: dict[str, Any]) -> None:
    nodes = fleet(ready, 3)
    nodes["n1"]["infiniband"][0]["ports"][0].update(state="DOWN", rate="10 Gb/sec (4X SDR)")
    assert differences(nodes) == []


def test_a_thousand_nodes_take_a_sentence_for_each_kind_of_outlier(ready: dict[str, Any]) -> None:
    nodes = fleet(ready, 1000)
    for number, fault in enumerate(FAULTS):
        for name in list(nodes)[number * 20 : number * 20 + 20]:
            fault(nodes[name])
    lines = sentences(differences(nodes))
    assert len(lines) == len(FAULTS)
    assert "and 12 more: link: the rate of ib0" in lines[0]
