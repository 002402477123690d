"""The container network's subnet against everything that a node may already use."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.collision import (
    collisions,
    pool_warnings,
    public_space_warning,
    ssh_address_problems,
    subnet_problems,
)

from tests.unit.plugins.node_reports import network, report

SUBNET = IPv4Network("192.169.16.0/24")
OURS = {"rdm.provision.cluster": "rdm"}


def overlaps(found: Any, subnet: str = str(SUBNET)) -> str:
    """Return why one node refuses the subnet, or nothing."""
    problems = collisions(IPv4Network(subnet), {"node1": found}, {"node1": "ibnet"}, "rdm")
    assert len(problems) <= 1
    return problems[0].reason if problems else ""


def with_network(*networks: dict[str, Any]) -> list[dict[str, Any]]:
    return [*report()["docker"]["networks"], *networks]


def route(destination: str, **changes: str) -> dict[str, str]:
    return {"table": "main", "destination": destination, "interface": "eth0", "gateway": "", **changes}


def test_sound_node_has_no_collision() -> None:
    assert overlaps(report()) == ""


def test_interface_is_named_with_its_range_and_a_free_subnet() -> None:
    found = report(interfaces=[{"name": "ib0", "addresses": ["192.169.16.5/24", "fe80::2/64"]}])
    [problem] = collisions(
        SUBNET, {"node2": found}, {"node2": "ibnet"}, "rdm", ["10.20.0.7", "node2.example"]
    )
    assert problem.node == "node2"
    assert problem.sentence == (
        "192.169.16.0/24 overlaps interface ib0 (192.169.16.5/24): choose another subnet with rdm_subnet, "
        "for example 10.20.1.0/24"
    )


def test_a_standing_cluster_has_the_hint_to_remove_the_other_network() -> None:
    """Another subnet would rebuild a healthy cluster."""
    ours = network("ibnet", str(SUBNET), labels=OURS)
    other = network("legacy", "192.169.16.128/25", driver="bridge")
    nodes = {
        "n1": report(docker_networks=with_network(ours, other)),
        "n2": report(docker_networks=with_network(ours)),
        "n3": report(ssh={"client": "192.169.16.9"}, docker_networks=with_network(ours)),
    }
    first, last = collisions(SUBNET, nodes, dict.fromkeys(nodes, "ibnet"), "rdm")
    assert (first.node, first.hint) == (
        "n1",
        "remove Docker network legacy (192.169.16.128/25) from this node; the cluster already has the subnet",
    )
    assert (last.node, last.hint) == (
        "n3",
        "choose another subnet with rdm_subnet, for example 10.20.0.0/24",
    )
    alone = {"n1": report(docker_networks=with_network(other))}
    [problem] = collisions(SUBNET, alone, {"n1": "ibnet"}, "rdm")
    assert problem.hint.startswith("choose another subnet"), "nothing of ours stands yet"
    moved = {"n1": report(docker_networks=with_network(network("ibnet", "10.9.0.0/24", labels=OURS), other))}
    [problem] = collisions(SUBNET, moved, {"n1": "ibnet"}, "rdm")
    assert problem.hint.startswith("choose another subnet"), "the cluster has another subnet"


def test_everything_that_overlaps_on_a_node_is_one_problem_and_named_once() -> None:
    found = report(
        interfaces=[
            {"name": "ib0", "addresses": ["192.169.16.5/28"]},
            {"name": "br-abcdef123456", "addresses": ["192.169.16.129/25"]},
        ],
        routes=[
            route("192.169.16.0/28", interface="ib0"),
            route("192.169.16.128/25", interface="br-abcdef123456"),
            route("192.169.0.0/16", gateway="10.0.0.7", table="200"),
        ],
        docker_networks=with_network(network("other", "192.169.16.128/25", driver="bridge")),
    )
    assert overlaps(found) == (
        "overlaps Docker network other (192.169.16.128/25), interface ib0 (192.169.16.5/28), "
        "route 192.169.0.0/16 via 10.0.0.7 on eth0 (table 200)"
    )


@pytest.mark.parametrize("destination", ["default", "0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"])
def test_routes_for_the_whole_internet_do_not_count(destination: str) -> None:
    assert overlaps(report(routes=[route(destination)])) == ""


def test_route_without_interface_counts() -> None:
    found = report(
        routes=[{"table": "main", "destination": "192.169.0.0/16", "interface": "", "gateway": ""}]
    )
    assert overlaps(found) == "overlaps route 192.169.0.0/16 (table main)"


def test_route_on_an_interface_counts_beyond_its_own_range() -> None:
    found = report(
        interfaces=[{"name": "ib0", "addresses": ["10.50.1.5/24"]}],
        routes=[route("10.50.1.0/24", interface="ib0"), route("192.169.0.0/16", interface="ib0")],
    )
    assert overlaps(found) == "overlaps route 192.169.0.0/16 on ib0 (table main)"


def test_an_address_pool_of_the_daemon_is_a_warning() -> None:
    pools = ["192.168.0.0/16", "10.20.0.0/14"]
    nodes = {"n1": report(docker_default_address_pools=pools), "n2": report(), "n3": report()}
    nodes["n3"] = report(docker_default_address_pools=pools)
    subnet = IPv4Network("192.168.50.0/24")
    assert collisions(subnet, nodes, dict.fromkeys(nodes, "ibnet"), "rdm") == []
    [warning] = pool_warnings(subnet, nodes, with_network={"n3"})
    assert warning.sentence.startswith(
        "192.168.50.0/24 lies in the Docker daemon's address pool 192.168.0.0/16: "
    )
    assert warning.node == "n1"
    assert warning.hint.endswith("for example 10.24.0.0/24"), "outside of every pool"
    assert pool_warnings(IPv4Network("10.24.0.0/24"), nodes) == []


def test_a_subnet_that_is_proposed_lies_outside_of_the_pools() -> None:
    found = report(
        docker_default_address_pools=["10.20.0.0/14"],
        interfaces=[{"name": "ib0", "addresses": ["192.169.16.5/24"]}],
    )
    [problem] = collisions(SUBNET, {"n1": found}, {"n1": "ibnet"}, "rdm")
    assert problem.hint.endswith("for example 10.24.0.0/24")


def test_an_address_pool_of_the_swarm_is_a_warning_and_not_proposed() -> None:
    swarm = report(docker_swarm_address_pools=["10.0.0.0/8"])
    assert overlaps(swarm, "10.60.0.0/24") == ""
    [warning] = pool_warnings(IPv4Network("10.60.0.0/24"), {"n1": swarm})
    assert warning.reason == "lies in the swarm's address pool 10.0.0.0/8"
    assert warning.hint.endswith("for example 172.16.0.0/24")


def test_pools_of_an_engine_that_is_yet_to_be_installed() -> None:
    bare = report(docker=None, pools_to_come=["10.20.0.0/14"])
    [warning] = pool_warnings(IPv4Network("10.21.0.0/24"), {"n1": bare})
    assert warning.reason == "lies in an address pool of the engine that is yet to be installed, 10.20.0.0/14"
    assert warning.hint.endswith("for example 10.24.0.0/24")


def test_ranges_of_kubernetes_are_uses_where_they_are_known() -> None:
    pods = {"range": "10.42.0.0/16", "of": "pods", "known": True}
    services = {"range": "10.43.0.0/16", "of": "services", "known": False}
    found = report(kubernetes={"name": "k3s", "ranges": [pods, services, {**pods, "range": "2001:db8::/56"}]})
    assert overlaps(found, "10.42.7.0/24") == "overlaps the range of Kubernetes (k3s)'s pods (10.42.0.0/16)"
    assert pool_warnings(IPv4Network("10.42.7.0/24"), {"n1": found}) == []
    assert overlaps(found, "10.43.7.0/24") == ""
    [warning] = pool_warnings(IPv4Network("10.43.7.0/24"), {"n1": found})
    assert warning.reason == (
        "lies in the range that Kubernetes (k3s) gives services by default, 10.43.0.0/16"
    )
    [problem] = collisions(IPv4Network("10.42.0.0/15"), {"n1": found}, {"n1": "ibnet"}, "rdm")
    assert problem.hint.endswith("for example 10.20.0.0/15")


def test_docker_gwbridge_counts() -> None:
    found = report(docker_networks=with_network(network("docker_gwbridge", "172.18.0.0/16", driver="bridge")))
    assert overlaps(found, "172.18.5.0/24") == "overlaps Docker network docker_gwbridge (172.18.0.0/16)"


@pytest.mark.parametrize("end", ["client", "server"])
def test_addresses_of_ssh_count(end: str) -> None:
    found = report(ssh={"client": "", "server": "", end: "192.169.16.9"})
    assert overlaps(found) == f"overlaps the address 192.169.16.9 of the ssh {end}"


@pytest.mark.parametrize(
    "own",
    [
        network("ibnet", "192.169.16.0/24", driver="bridge", labels=OURS),
        network("ibnet", "192.169.0.0/16", driver="bridge", labels=OURS),
        network("ibnet", "192.169.16.0/24", driver="bridge"),
        network("before", "192.169.16.0/24", driver="bridge", labels=OURS),
    ],
    ids=["ours", "ours-before-a-change", "made-by-hand", "ours-of-another-name"],
)
def test_own_network_is_no_collision(own: dict[str, Any]) -> None:
    found = report(
        docker_networks=with_network(own),
        interfaces=[{"name": "br-abcdef123456", "addresses": ["192.169.16.1/24"]}],
        routes=[route("192.169.16.0/24", interface="br-abcdef123456")],
    )
    assert overlaps(found) == ""


@pytest.mark.parametrize(
    "foreign",
    [
        network("ibnet", "192.169.0.0/16"),
        network("other", "192.169.16.0/24"),
        network("ibnet", "192.169.0.0/16", labels={"rdm.provision.cluster": "another"}),
    ],
)
def test_network_of_others_is_a_collision(foreign: dict[str, Any]) -> None:
    assert f"overlaps Docker network {foreign['name']}" in overlaps(
        report(docker_networks=with_network(foreign))
    )


def test_node_without_docker_is_still_compared() -> None:
    found = report(docker=None, interfaces=[{"name": "ib0", "addresses": ["192.169.16.5/24"]}])
    assert "interface ib0" in overlaps(found)


def test_free_subnet_is_free_on_every_node() -> None:
    facts = {
        "node1": report(interfaces=[{"name": "a", "addresses": ["192.169.16.5/24", "10.20.0.1/24"]}]),
        "node2": report(interfaces=[{"name": "a", "addresses": ["10.20.1.1/24"]}]),
    }
    [problem] = collisions(SUBNET, facts, dict.fromkeys(facts, "ibnet"), "rdm")
    assert problem.hint.endswith("for example 10.20.2.0/24")


@pytest.mark.parametrize(
    ("subnet", "word"),
    [
        ("127.0.0.0/24", "loopback"),
        ("169.254.7.0/24", "link-local"),
        ("224.1.0.0/16", "multicast"),
        ("240.0.0.0/24", "reserved"),
        ("0.0.0.0/8", "this network"),
    ],
)
def test_special_ranges_are_refused(subnet: str, word: str) -> None:
    [problem] = subnet_problems(IPv4Network(subnet))
    assert word in problem.reason


def test_public_space_is_a_warning() -> None:
    assert "RFC 1918" in str(public_space_warning(SUBNET))
    assert "would be 10.20.0.0/24 " in str(public_space_warning(SUBNET))
    assert "would be 10.20.1.0/24 " in str(public_space_warning(SUBNET, ["node", "10.20.0.11"]))
    assert subnet_problems(SUBNET) == []
    for private in ("10.1.0.0/16", "172.31.0.0/24", "192.168.0.0/16"):
        assert public_space_warning(IPv4Network(private)) is None


def test_host_address_inside_the_subnet_is_refused_without_querying_a_node() -> None:
    hosts = {"node1": "192.169.16.7", "node2": "node2.example", "node3": "10.0.0.3", "node4": "fe80::1"}
    [problem] = ssh_address_problems(SUBNET, hosts)
    assert (problem.node, problem.value) == ("node1", "ansible_host 192.169.16.7")
