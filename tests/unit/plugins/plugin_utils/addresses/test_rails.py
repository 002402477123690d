"""Rails share the offsets of one address plan, and nothing else."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.network.rails import in_subnet
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.rails import (
    MOST,
    name_problems,
    network_of,
    prefix_of,
    rail_subnets,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.network_options import driver_options
from hypothesis import given
from hypothesis import strategies as st

FIRST = IPv4Network("192.169.16.0/24")


def subnets(count: int, *given_subnets: str, first: IPv4Network = FIRST) -> tuple[list[str], str]:
    found, problems = rail_subnets(first, {"a": count, "b": count}, dict.fromkeys("ab", given_subnets))
    return [str(subnet) for subnet in found], "; ".join(problem.sentence for problem in problems)


def test_without_rails_there_is_no_further_subnet() -> None:
    assert subnets(0) == subnets(1) == ([], "")
    assert rail_subnets(FIRST, {"a": 0, "b": 1}, {}) == ([], [])


def test_subnets_follow_the_plans_or_are_the_users() -> None:
    assert subnets(3) == (["192.169.17.0/24", "192.169.18.0/24"], "")
    assert subnets(2, "10.7.0.0/24") == (["10.7.0.0/24"], "")


@pytest.mark.parametrize(
    ("count", "given_subnets", "first", "message"),
    [
        (
            2,
            ("10.7.0.0/25",),
            FIRST,
            "is not as large as the address plan's 192.169.16.0/24, .* prefix of /24",
        ),
        (2, ("192.169.16.0/24",), FIRST, "overlaps 192.169.16.0/24 of another rail"),
        (3, ("10.7.0.0/24", "10.7.0.0/24"), FIRST, "overlaps 10.7.0.0/24 of another rail"),
        (3, ("10.7.0.0/24",), FIRST, "has 1 subnets, and there are 2 rails after the first"),
        (1, ("10.7.0.0/24",), FIRST, "has 1 subnets, and there are 0 rails"),
        (2, ("10.7.0.1/24",), FIRST, "container_rail_subnets 10.7.0.1/24 has host bits set"),
        (2, (), IPv4Network("255.255.255.0/24"), "container_rail_subnets must be set: .* no room"),
    ],
)
def test_unsuitable_subnets_are_reported(
    count: int, given_subnets: tuple[str, ...], first: IPv4Network, message: str
) -> None:
    found, sentences = subnets(count, *given_subnets, first=first)
    assert found == []
    assert re.search(message, sentences), sentences


def test_every_node_has_as_many_rails() -> None:
    _, problems = rail_subnets(FIRST, {"a": 2, "b": 0, "c": 1}, {})
    assert "has 2 interfaces on a, and fewer on b, c" in problems[0].sentence
    _, problems = rail_subnets(FIRST, {"a": 2, "b": 2}, {"a": ["10.7.0.0/24"], "b": []})
    assert problems[0].sentence.startswith("container_rail_subnets differs between nodes")


@pytest.mark.parametrize(
    ("rails", "driver", "message"),
    [
        (["ib0", "ib0"], "sriov", "has ib0 more than once"),
        (["ib1", "ib0"], "sriov", "begins with ib1, and MY_IP is on network_parent ib0: list ib0 first"),
        (["ib0", "a b"], "sriov", "has 'a b', which is no name of an interface"),
        (["ib0", "ib1"], "bridge", "has no meaning for the driver bridge"),
        ([f"ib{number}" for number in range(MOST + 1)], "sriov", f"has more than {MOST} interfaces"),
    ],
)
def test_lists_that_make_no_sense_are_reported(rails: list[str], driver: str, message: str) -> None:
    assert message in name_problems("a", rails, "ib0", driver)[0].sentence


@pytest.mark.parametrize("rails", [[], ["ib0"], ["ib0", "ib1", "ens1f0.100"]])
def test_valid_lists_are_not_reported(rails: list[str]) -> None:
    assert name_problems("a", rails, "ib0", "sriov") == []


NETWORKS = st.integers(16, 29).flatmap(
    lambda prefix: st.integers(1 << 24, (1 << 32) - 1).map(
        lambda base: IPv4Network((base >> (32 - prefix) << (32 - prefix), prefix))
    )
)


@given(first=NETWORKS, count=st.integers(1, MOST), offset=st.integers(0, (1 << 16) - 1))
def test_no_two_rails_overlap_and_a_node_has_one_offset_in_all(
    first: IPv4Network, count: int, offset: int
) -> None:
    found, problems = rail_subnets(first, {"a": count}, {})
    if problems:
        assert int(first.broadcast_address) + count * first.num_addresses > 1 << 32
        return
    assert len(found) == count - 1
    every = [first, *found]
    assert not any(one.overlaps(other) for one in every for other in every if one is not other)
    address = first[offset % first.num_addresses]
    for subnet in found:
        there = IPv4Address(in_subnet(str(address), first, subnet))
        assert there in subnet
        assert int(there) - int(subnet.network_address) == int(address) - int(first.network_address)


def test_the_first_rail_is_named_as_the_only_one_and_none_is_named_twice() -> None:
    assert [network_of("ibnet", index) for index in range(3)] == ["ibnet", "ibnet-1", "ibnet-2"]
    for prefix in ("", "ib"):
        named = [prefix_of(prefix, index) for index in range(MOST)]
        assert named[0] == prefix
        # An engine puts a number behind it.
        assert len({name or "eth" for name in named}) == MOST
        assert not any(other[len(name) :].isdigit() for name in named if name for other in named)
    assert driver_options("sriov", parent="ib1", prefix=prefix_of("", 1))["prefix"] == "eth1r"
