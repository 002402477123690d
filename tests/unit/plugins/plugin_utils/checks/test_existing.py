"""Checks of networks and containers that exist: each problem names the value and what would work."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.existing import (
    container_seen,
    ended_by_plan,
    network_differences,
    network_present,
)

from tests.unit.plugins.desired_states import wanted
from tests.unit.plugins.node_reports import container, network, report
from tests.unit.plugins.plugin_utils.checks.findings import (
    OURS,
    SUBNET,
    problems,
    warnings,
    with_networks,
)


def test_network_as_planned_passes() -> None:
    found = with_networks(network("ibnet", SUBNET, labels=OURS))
    assert network_present(wanted(), found)
    assert network_differences(wanted(), found) == []
    assert problems(found) == []
    assert not network_present(wanted(), report())


@pytest.mark.parametrize(
    ("existing", "difference"),
    [
        (network("ibnet", SUBNET), "it does not carry this cluster's label"),
        (network("ibnet", "10.0.0.0/8", labels=OURS), "subnet is 10.0.0.0/8, not 192.169.16.0/24"),
        (network("ibnet", SUBNET, labels=OURS, driver="ipvlan"), "driver is ipvlan, not macvlan"),
        (network("ibnet", SUBNET, labels=OURS, options={"parent": "eth0"}), "parent is eth0, not ib0"),
        (network("ibnet", SUBNET, labels=OURS, options={}), "parent is none, not ib0"),
        (
            network("ibnet", SUBNET, labels=OURS, subnets=[{"subnet": SUBNET, "gateway": "192.169.16.254"}]),
            "gateway is 192.169.16.254, not 192.169.16.1",
        ),
        (network("ibnet", SUBNET, labels=OURS, subnets=[]), "subnet is none, not 192.169.16.0/24"),
    ],
)
def test_network_with_other_settings_is_refused_unless_requested(
    existing: dict[str, Any], difference: str
) -> None:
    found = with_networks(existing)
    assert difference in network_differences(wanted(), found)
    [sentence] = problems(found)
    assert sentence.startswith("the Docker network ibnet has other settings: ")
    assert difference in sentence
    assert "network_replace: true" in sentence
    assert problems(found, network_replace=True) == []


@pytest.mark.parametrize("attached", ["running", "stopped"])
def test_network_with_a_foreign_container_is_never_replaced(attached: str) -> None:
    existing = network(
        "ibnet", "10.7.0.0/16", labels=OURS, containers=["guest"] if attached == "running" else []
    )
    on_it = {"ibnet": "10.7.0.9"} if attached == "stopped" else {}
    found = with_networks(
        existing, containers=(container("guest", **on_it), container("rdm", "rdm", ibnet="10.7.0.5"))
    )
    [sentence] = problems(found, network_replace=True)
    assert sentence.endswith("remove guest from it, or choose another network_name")


def test_jobs_end_with_their_containers_network_or_address() -> None:
    trains = {**container("rdm", "rdm", ibnet="192.169.16.100"), "jobs": ["b", "a"]}
    guest = {**container("guest", "beta", ibnet="192.169.16.9"), "jobs": ["c"]}
    kept = with_networks(network("ibnet", SUBNET, labels=OURS), containers=(trains, guest))
    other = with_networks(network("ibnet", "10.7.0.0/16", labels=OURS), containers=(trains, guest))
    assert ended_by_plan(wanted(network_replace=True), kept) == []
    assert ended_by_plan(wanted(), other) == []  # which is refused for itself
    assert ended_by_plan(wanted(network_replace=True), other) == ["a", "b"]
    assert ended_by_plan(wanted(my_ip="192.169.16.7"), kept) == ["a", "b"]
    assert ended_by_plan(wanted(my_ip="192.169.16.7", container_protect_jobs=False), kept) == []
    assert ended_by_plan(wanted(), report(docker=None)) == []


def test_network_of_another_cluster_is_never_replaced() -> None:
    found = with_networks(network("ibnet", SUBNET, labels={"rdm.provision.cluster": "beta"}))
    [sentence] = problems(found, network_replace=True)
    assert sentence == "the Docker network ibnet belongs to the cluster beta: choose another network_name"


def test_container_of_our_name_that_is_not_ours_is_refused() -> None:
    [sentence] = problems(with_networks(containers=(container("rdm"),)))
    assert sentence.startswith("a container named rdm exists already and is not this cluster's")
    assert problems(with_networks(containers=(container("rdm", "rdm"),))) == []
    assert problems(with_networks(containers=(container("rdm", "beta"),))) != []


def test_foreign_container_on_our_address_is_refused() -> None:
    guest = container("guest", ibnet="192.169.16.100")
    found = with_networks(network("ibnet", SUBNET, labels=OURS, containers=["guest"]), containers=(guest,))
    [sentence] = problems(found)
    assert sentence.startswith("192.169.16.100 is used by the container guest")


def test_another_container_on_the_network_is_named_and_the_node_whose_address_it_has() -> None:
    ours = network("ibnet", SUBNET, labels=OURS, containers=["guest", "rdm"])
    mine = container("rdm", cluster="rdm", ibnet="192.169.16.100")

    others = {"192.169.16.100": "node1", "192.169.16.101": "node2"}
    takes = with_networks(ours, containers=(mine, container("guest", ibnet="192.169.16.101")))
    assert warnings(takes, others=others) == []
    assert problems(takes, others=others) == [
        "the address 192.169.16.101 of node2 is used by the container guest, which is not this "
        "cluster's: remove that container from the network"
    ]
    shared = with_networks(ours, containers=(mine, container("guest", ibnet="192.169.16.7")))
    assert problems(shared, others=others) == []
    (sentence,) = warnings(shared, others=others)
    assert "is on the network ibnet at 192.169.16.7: the engine may give it the address" in sentence
    assert warnings(with_networks(ours, containers=(mine,))) != []  # guest, of which the engine knows no more
    alone = network("ibnet", SUBNET, labels=OURS, containers=["rdm"])
    assert warnings(with_networks(alone, containers=(mine,))) == []


@pytest.mark.parametrize(
    ("jobs", "words"), [(["gpt"], "The job gpt runs"), (["a", "b"], "The jobs a, b run")]
)
def test_jobs_under_another_clusters_name_are_named(jobs: list[str], words: str) -> None:
    theirs = container("old", cluster="former")
    assert warnings(report(docker_containers=[theirs])) == []
    (sentence,) = warnings(report(docker_containers=[{**theirs, "jobs": jobs}]))
    assert sentence.startswith(f"node1: {words} in the container old of the cluster former")


@pytest.mark.parametrize("kind", ["container", "network"])
def test_container_name_that_differs_from_the_clusters_is_refused(kind: str) -> None:
    labels = {**OURS, "rdm.provision.role": kind}
    if kind == "container":
        found = report(docker_containers=[{**container("old"), "labels": labels}])
    else:
        found = with_networks(network("old", "10.9.0.0/24", labels=labels))
    [sentence] = problems(found)
    assert f"a {kind} named old" in sentence
    assert "rdm-provision down" in sentence


def test_a_killed_runs_leftover_container_is_no_other_name() -> None:
    labels = {**OURS, "rdm.provision.role": "container"}
    left = [{**container(name), "image": "i:1", "labels": labels} for name in ("rdm.next", "rdm.old", "rdm")]
    found = report(docker_containers=left)
    assert problems(found) == []
    assert container_seen(wanted(), found)["name"] == "rdm"


def test_a_second_network_on_the_parent_interface_is_refused() -> None:
    found = with_networks(network("theirs", "10.9.0.0/24", driver="macvlan", options={"parent": "ib0"}))
    [sentence] = problems(found)
    assert "network_parent ib0 carries the Docker network theirs already" in sentence
    assert problems(found, network_parent="eth0", network_options={"parent": "eth0"}) == []
