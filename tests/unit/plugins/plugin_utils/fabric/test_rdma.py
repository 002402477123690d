"""The measurements of each node, and the evaluation of devices, nodes and links."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rail_results import of_rails
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rdma import (
    Sample,
    as_dict,
    device_problems,
    evaluate_rdma,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rdma_rounds import (
    measuring,
    parts,
    sample_of,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.report import rdma_report, text

from tests.unit.plugins.plugin_utils.fabric.node_names import names

OPTIONS = {"most_rounds": 16, "above": 128, "seconds": 1, "timeout": 5.0}


def of_node(**changes: Any) -> dict[str, Any]:
    return {
        "reason": "",
        "found": {
            "device": "mlx5_2",
            "ib_port": 1,
            "gid_index": 3,
            "rate_gbit": 200.0,
            "usable": {"/dev/infiniband/uverbs2": "mlx5_2", "/dev/infiniband/rdma_cm": ""},
            "foreign": [],
        },
        "given": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs2"],
        "given_all": False,
        **changes,
    }


def results(nodes: list[str], slow: str = "") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in nodes:
        pairs = {
            other: [20.0 if slow in (one, other) else 180.0, 20.0 if slow in (one, other) else 181.0, 2.0]
            for other in nodes
            if other != one
        }
        found[one] = {"reason": "", "pairs": pairs, "errors": {}}
    return found


def test_each_node_gets_its_partners_and_one_of_a_pair_calls() -> None:
    addresses = {name: f"10.0.0.{number}" for number, name in enumerate(names(4), 1)}
    found = parts(addresses, dict.fromkeys(addresses, of_node()), OPTIONS, forks=4, run="abc")
    assert list(found) == names(4)
    mine = found["n2"]
    assert (mine["address"], mine["device"], mine["gid_index"], mine["run"]) == (
        "10.0.0.2",
        "mlx5_2",
        3,
        "abc",
    )
    assert len(mine["ports"]) == 8
    assert mine["ports"] == found["n4"]["ports"]
    assert mine["gather"] == 32.0
    assert mine["limit"] == 32 + 60 + 3 * 6
    assert {(peer, calls) for peer, _, calls in mine["rounds"]} == {("n1", False), ("n3", True), ("n4", True)}
    for name, part in found.items():
        for number, (peer, address, calls) in enumerate(part["rounds"]):
            assert address == addresses[peer]
            assert found[peer]["rounds"][number] == [name, addresses[name], not calls]


def test_unexplained_spread_is_a_warning_and_nodes_without_devices_are_named() -> None:
    nodes = names(4)
    found = results(nodes)
    for one in nodes:
        for other, figures in found[one]["pairs"].items():
            if {one, other} != {"n1", "n2"}:
                figures[:2] = [20.0, 20.0]
    rdma = as_dict(evaluate_rdma(nodes, dict.fromkeys(nodes, of_node()), found))
    assert rdma["ok"] is True
    assert any(one.startswith("the bandwidths go from 20 to 180 Gb/s, and no") for one in rdma["warnings"])
    bare = of_node(reason="it has no RDMA device: the node shows none", found={"shown": []}, given=[])
    assert as_dict(evaluate_rdma(["n1"], {"n1": bare}, {}))["without_device"] == ["n1"]


def test_a_thousand_nodes_carry_out_a_sample_and_start_in_their_time() -> None:
    addresses = {name: f"10.0.{number // 250}.{number % 250}" for number, name in enumerate(names(1000))}
    found = parts(addresses, dict.fromkeys(addresses, of_node()), OPTIONS, forks=50, run="abc")
    assert len(found) == 1000
    assert {len(part["rounds"]) for part in found.values()} == {16}
    assert found["n1"]["gather"] == 70.0
    sample = sample_of(1000, 16, 128)
    assert sample == Sample(16, 999)
    assert str(sample) == (
        "Sampled: 16 of 999 rounds. Every node is measured with about 16 others, so that a bad one is found; "
        "a single bad pair is met with 1.6 %."
    )
    assert sample_of(128, 16, 128) is None


def test_nodes_that_cannot_measure_are_left_out_of_the_rounds() -> None:
    addresses = dict.fromkeys(names(4), "10.0.0.1")
    gathered = {"n1": of_node(), "n2": of_node(reason="it has no RDMA device"), "n3": of_node()}
    assert measuring(addresses, gathered) == ["n1", "n3"]
    assert measuring(addresses, {"n1": of_node(), "n2": gathered["n2"]}) == []


@pytest.mark.parametrize(
    ("changes", "problems", "warnings"),
    [
        ({}, [], []),
        (
            {"given": ["/dev/infiniband/uverbs2", "/dev/infiniband/uverbs3", "/dev/infiniband/rdma_cm"]},
            ["its container was given /dev/infiniband/uverbs3, but cannot open it"],
            [],
        ),
        (
            {"given": ["/dev/infiniband/rdma_cm"]},
            ["its container can use /dev/infiniband/uverbs2, which it was not given"],
            [],
        ),
        ({"given": [], "given_all": True}, [], []),
        (
            {
                "given": [],
                "given_all": True,
                "found": {
                    "usable": {"/dev/infiniband/uverbs0": "mlx5_0", "/dev/infiniband/uverbs1": "mlx5_1"}
                },
            },
            [],
            ["its container can use all RDMA devices of the node: mlx5_0, mlx5_1"],
        ),
        (
            {"found": {**of_node()["found"], "foreign": ["mlx5_2"]}},
            [],
            ["its container has mlx5_2, but not the interface of it"],
        ),
    ],
)
def test_container_has_exactly_its_assigned_devices(
    changes: dict[str, Any], problems: list[str], warnings: list[str]
) -> None:
    assert device_problems(of_node(**changes)) == (problems, warnings)


def test_the_slow_node_fails_with_its_reason_and_its_links_rate() -> None:
    nodes = names(6)
    gathered = {name: of_node() for name in nodes}
    gathered["n3"]["found"]["rate_gbit"] = 25.0
    evaluated = as_dict(evaluate_rdma(nodes, gathered, results(nodes, slow="n3")))
    assert not evaluated["ok"]
    assert [name for name, result in evaluated["verdicts"].items() if not result["ok"]] == ["n3"]
    assert evaluated["findings"] == [
        "n3: it sends 20 and receives 20 Gb/s where 180 are usual; its link runs at 25 Gb/s, the others' "
        "at 200"
    ]
    assert evaluated["warnings"] == []
    assert evaluated["by_node"]["n3"] == {
        "sent_gbit": 20.0,
        "received_gbit": 20.0,
        "latency_us": 2.0,
        "rate_gbit": 25.0,
    }
    shown = text(rdma_report(evaluated))
    assert "n3       20        20        2    25  failed" in shown
    assert "failed: n3: it sends 20" in shown
    assert "rail" not in shown
    assert "180" not in text(rdma_report({**evaluated, "usual_gbit": None})).partition("failed")[0]


def test_of_several_rails_each_is_evaluated_and_named() -> None:
    nodes = names(6)
    closed = of_node(given=["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs2", "/dev/infiniband/uverbs9"])
    gathered = {**{name: of_node() for name in nodes}, "n5": closed}
    rails = {
        "ib0": as_dict(evaluate_rdma(nodes, gathered, results(nodes))),
        "ib1": as_dict(evaluate_rdma(nodes, gathered, results(nodes, slow="n3"))),
    }
    evaluated = of_rails(rails)
    slow = "it sends 20 and receives 20 Gb/s where 180 are usual"
    shut = "its container was given /dev/infiniband/uverbs9, but cannot open it"
    assert evaluated["findings"] == [f"n5: {shut}", f"rail ib1: n3: {slow}"], (
        "what holds everywhere is reported once"
    )
    assert {name: one["reason"] for name, one in evaluated["verdicts"].items() if not one["ok"]} == {
        "n3": f"rail ib1: {slow}",
        "n5": shut,
    }
    assert not evaluated["ok"]
    assert evaluated["by_node"] == rails["ib0"]["by_node"]
    assert evaluated["rails"] == rails
    shown = text(rdma_report(evaluated))
    assert shown.index("RDMA, rail ib0") < shown.index("RDMA, rail ib1") < shown.index("failed: n5")
    assert shown.count("failed: ") == 2, "each finding names its rail, and is reported once"
    assert of_rails({"ib0": rails["ib0"]})["findings"] == [f"rail ib0: n5: {shut}"], (
        "until the next is measured"
    )


def test_the_only_rail_has_no_name() -> None:
    evaluated = as_dict(evaluate_rdma(["n1"], {"n1": of_node()}, {}))
    assert of_rails({"": evaluated}) == evaluated


def test_missing_report_of_a_partner_is_filled_in_by_the_other() -> None:
    nodes = names(3)
    found = results(nodes)
    found["n2"] = {"reason": "", "pairs": {}, "errors": {}}
    evaluated = as_dict(evaluate_rdma(nodes, {name: of_node() for name in nodes}, found))
    assert evaluated["ok"]
    assert evaluated["bandwidth_gbit"]["n2"] == {"n1": 181.0, "n3": 181.0}


def test_a_reason_that_several_share_is_reported_once() -> None:
    nodes = names(3)
    reason = "it has no RDMA device: the node shows none"
    evaluated = as_dict(
        evaluate_rdma(nodes, {name: of_node(reason=reason, given=[], given_all=True) for name in nodes}, {})
    )
    assert evaluated["findings"] == [f"n1, n2, n3: {reason}"]
    assert [result["ok"] for result in evaluated["verdicts"].values()] == [False] * 3
    assert evaluated["usual_gbit"] is None


def test_a_usual_bandwidth_far_below_the_links_rate_is_reported() -> None:
    nodes = names(4)
    gathered = {name: of_node() for name in nodes}
    for one in gathered.values():
        one["found"]["rate_gbit"] = 400.0
    evaluated = as_dict(evaluate_rdma(nodes, gathered, results(nodes)))
    assert evaluated["ok"]
    assert evaluated["warnings"] == ["the usual bandwidth is 181 Gb/s, 45% of the links' 400 Gb/s"]


def test_beyond_128_nodes_the_pairs_are_left_out() -> None:
    nodes = names(129)
    evaluated = as_dict(
        evaluate_rdma(nodes, {name: of_node() for name in nodes}, results(nodes), Sample(16, 129))
    )
    assert evaluated["bandwidth_gbit"] == {}
    assert evaluated["by_node"]["n129"]["sent_gbit"] == 180.0
    assert evaluated["sample"]["rounds"] == 16
