"""The desired container networks of a node, with and without a plan."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import (
    DesiredNetwork,
    DockerNetwork,
    desired_network,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

MACVLAN = {"network_driver": "macvlan", "network_parent": "ib0"}
PLANNED = PlanEntry("n1", subnet="10.1.0.0/24", gateway="10.1.0.1")
OWN = {"network_subnet": "10.2.0.0/24", "network_gateway": "10.2.0.1"}


def made(entry: PlanEntry = PLANNED, **variables: Any) -> DesiredNetwork:
    given = {**MACVLAN, **variables}
    return desired_network(NodeVariables(given, given.__getitem__), entry)


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


def test_what_contradicts_is_an_error() -> None:
    with pytest.raises(ValueError, match="means nothing to sriov_plugin upstream"):
        made(network_driver="sriov", network_pkey="0x8001", sriov_plugin="upstream")
