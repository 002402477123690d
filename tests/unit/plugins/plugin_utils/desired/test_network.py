"""The desired container networks of a node, with and without a plan."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import (
    DesiredNetwork,
    DockerNetwork,
    desired_network,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import desired

from tests.unit.plugins.desired_states import variables

MACVLAN = {"network_driver": "macvlan", "network_parent": "ib0"}
PLANNED = PlanEntry("n1", subnet="10.1.0.0/24", gateway="10.1.0.1")
OWN = {"network_subnet": "10.2.0.0/24", "network_gateway": "10.2.0.1"}


def made(entry: PlanEntry = PLANNED, **given: Any) -> DesiredNetwork:
    return desired_network(variables({**MACVLAN, **given}), entry)


def test_the_plan_says_subnet_and_gateway() -> None:
    network = DockerNetwork("ibnet", "10.1.0.0/24", "10.1.0.1", {"parent": "ib0"})
    assert made() == DesiredNetwork("rdm", "macvlan", [network])


def test_without_a_plan_the_variables_say_it_all() -> None:
    network = made(PlanEntry("n1"), **OWN, network_name="mine", network_vlan="7", rdm_cluster="other")
    mine = DockerNetwork("mine", "10.2.0.0/24", "10.2.0.1", {"parent": "ib0.7"})
    assert network == DesiredNetwork("other", "macvlan", [mine])


@pytest.mark.parametrize("missing", OWN)
def test_what_only_a_plan_says_is_named_where_there_is_none(missing: str) -> None:
    given = {name: value for name, value in OWN.items() if name != missing}
    with pytest.raises(ValueError, match=f"^set {missing}, or run the role preflight before$"):
        made(PlanEntry("n1"), **given)


def test_each_further_rail_has_a_network_at_the_same_offset() -> None:
    networks = made(PLANNED._replace(rails=("10.1.1.0/24",)), container_rails="ib0,ib1").networks
    assert networks[1:] == [DockerNetwork("ibnet-1", "10.1.1.0/24", "10.1.1.1", {"parent": "ib1"})]


def test_interfaces_of_rails_keep_their_names_where_the_driver_names_them() -> None:
    entry = PLANNED._replace(rails=("10.1.1.0/24",))
    networks = made(entry, network_driver="sriov", container_rails=["ib0", "ib1"]).networks
    assert [one.options.get("prefix") for one in networks] == [None, "eth1r"]


def test_contradicting_settings_are_an_error() -> None:
    with pytest.raises(ValueError, match="means nothing to sriov_plugin upstream; choose rdm-sriov"):
        made(network_driver="sriov", network_pkey="0x8001", sriov_plugin="upstream")


def steps(present: bool | None = False, **given: Any) -> dict[str, Any]:
    """Return what the role's tasks read, after preflight found an engine, and perhaps the network."""
    given = {**MACVLAN, "preflight_facts": {"node": {"docker": {"engine": "docker"}}}, **given}
    entry = PLANNED._replace(observed={} if present is None else {"network_present": present})
    return desired("network", variables(given), entry, observed=Observed("n1", given))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, True),
        ({"present": True}, False),
        ({"present": None}, False),
        ({"preflight_facts": {"node": {"docker": None}}}, False),
        ({"preflight_facts": {}}, False),
    ],
)
def test_a_network_is_new_only_if_preflight_found_none(found: dict[str, Any], expected: bool) -> None:
    (network,) = steps(**found)["networks"]
    assert network["is_new"] is expected


def test_a_label_holds_the_options_that_podman_does_not_show() -> None:
    (docker,) = steps()["networks"]
    (podman,) = steps(__docker_engine_gathered={"node": {"docker": {"engine": "podman"}}})["networks"]
    labels = {"rdm.provision.cluster": "rdm", "rdm.provision.role": "network"}
    assert (docker["labels"], docker["compared"]) == (labels, {"parent": "ib0"})
    assert (podman["labels"], podman["compared"]) == (
        {**labels, "rdm.provision.driver_options": '{"parent": "ib0"}'},
        {},
    )


def compared(cluster: str | None) -> dict[str, Any]:
    """Return what a comparison registers about a network with another driver and no options."""
    return {
        "network": {"Labels": cluster and {"rdm.provision.cluster": cluster}},
        "diff": {
            "differences": ["driver", "options"],
            "before": {"driver": "bridge", "options": {}},
            "after": {"driver": "macvlan", "options": "parent=ib0"},
        },
    }


def test_only_our_network_is_replaced_and_only_if_the_user_allows_it() -> None:
    assert steps()["problem"] == steps(__network_compared={"network": None})["problem"] == ""
    assert steps(__network_compared=compared("rdm"), network_replace=True)["problem"] == ""
    assert steps(__network_compared=compared("rdm"))["problem"] == (
        "with other settings (driver is bridge, not macvlan; options is none, not parent=ib0): set "
        "network_replace: true to replace it, or choose another network_name"
    )
    for owner in (None, "other"):
        assert steps(__network_compared=compared(owner), network_replace=True)["problem"] == (
            "that is not ours (it lacks the label rdm.provision.cluster=rdm): remove it, or choose another "
            "network_name"
        )


def test_a_removal_needs_no_plan() -> None:
    gone = desired("network", variables(MACVLAN), PlanEntry("n1"), absent=True)
    assert gone == {
        "cluster": "rdm",
        "socket": "/run/docker/plugins/sriov.sock",
        "protect_jobs": True,
        "stop_timeout": 10,
    }
