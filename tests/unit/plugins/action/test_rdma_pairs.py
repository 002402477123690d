"""`rdma_pairs` uses the hosts' registered results of its rail only."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.action.rdma_pairs import ActionModule

NODES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}
RAILS = {"ib0": "10.0.0.0/24", "ib1": "10.0.1.0/24"}


class HostVars:
    """The registered results of each host."""

    def __init__(self, registered: dict[str, dict[str, Any]]) -> None:
        self.registered = registered

    def raw_get(self, host: str) -> dict[str, Any]:
        """Return the variables of a host."""
        return self.registered.get(host, {})


def of_node(rail: str) -> dict[str, Any]:
    """Return the facts of a node that can measure on a rail."""
    seen = {"device": f"mlx5_{rail}", "ib_port": 1, "gid_index": 3, "usable": {}, "foreign": []}
    return {"reason": "", "rail": rail, "found": {**seen, "rate_gbit": 200.0}, "given": [], "given_all": True}


def result(rail: str, node: str, gbit: float) -> dict[str, Any]:
    """Return a node's measurements on a rail with all others."""
    pairs = {other: [gbit, gbit, 2.0] for other in NODES if other != node}
    return {"reason": "", "rail": rail, "done": True, "pairs": pairs, "errors": {}}


def decide(stage: str, registered: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return what the action decides about the rail ib1."""
    options = {
        "stage": stage,
        "nodes": "".join(f"{name} {address}\n" for name, address in NODES.items()),
        "gathered": "found",
        "results": "result",
        "most_rounds": 16,
        "above": 128,
        "seconds": 1,
        "timeout": 5.0,
        "slow_share": 0.7,
        "rails": RAILS,
        "rail": "ib1",
        "others": {},
        **more,
    }
    variables = {
        "ansible_forks": 5,
        "ansible_play_hosts_all": [*NODES],
        "hostvars": HostVars(registered),
    }
    action: Any = ActionModule.__new__(ActionModule)
    decided: dict[str, Any] = action.decide(options, variables)
    return decided


def test_host_lost_on_an_earlier_rail_takes_no_part() -> None:
    decided = decide(
        "schedule",
        {
            "n1": {"found": of_node("ib1")},
            "n2": {"found": of_node("ib1")},
            "n3": {"found": of_node("ib0")},
        },
    )
    assert {name: part["device"] for name, part in decided["parts"].items()} == {
        "n1": "mlx5_ib1",
        "n2": "mlx5_ib1",
    }
    assert decided["parts"]["n2"]["address"] == "10.0.1.2"


def test_results_of_an_earlier_rail_are_not_reported_for_another() -> None:
    registered = {
        "n1": {"found": of_node("ib1"), "result": result("ib1", "n1", 180.0)},
        "n2": {"found": of_node("ib1"), "result": result("ib1", "n2", 180.0)},
        "n3": {"found": of_node("ib0"), "result": result("ib0", "n3", 99.0)},
    }
    [rail] = decide("evaluate", registered)["rdma"]["rails"].values()
    assert rail["nodes"] == ["n1", "n2"]
    # It became unreachable before its measurement.
    registered["n3"]["found"] = of_node("ib1")
    [rail] = decide("evaluate", registered)["rdma"]["rails"].values()
    assert rail["nodes"] == ["n1", "n2", "n3"]
    assert 99.0 not in [gbit for row in rail["bandwidth_gbit"].values() for gbit in row.values()]


def test_failed_node_is_named_with_the_reason_and_absent_ones_are_skipped() -> None:
    registered = {
        "n1": {"found": of_node("ib1"), "result": {"unreachable": True, "msg": "no route to host"}},
        "n2": {"found": {"failed": True, "msg": "it broke"}},
        "n3": {"found": {"unreachable": True}},
    }
    assert decide("schedule", registered)["parts"] == {}
    [rail] = decide("evaluate", registered)["rdma"]["rails"].values()
    assert rail["nodes"] == ["n1", "n2"]
    assert rail["verdicts"]["n2"] == {"ok": False, "reason": "it broke"}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("seconds", 0, "seconds must be at least 1, not 0"),
        ("timeout", 0.0, "timeout must be at least 0.1, not 0.0"),
        ("slow_share", 1.0, "slow_share must be between 0 and 1, not 1.0"),
        ("rail", "ib7", "there is no rail ib7: choose one of ib0, ib1"),
    ],
)
def test_invalid_option_is_one_sentence(option: str, value: Any, message: str) -> None:
    with pytest.raises(AnsibleActionFail, match=message):
        decide("schedule", {}, **{option: value})
