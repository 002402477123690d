"""Addresses of VFs are unique in a cluster, and stable while the node exists."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import addresses, guid_of
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import (
    AddressPlan,
    PlanFileError,
    format_plan,
    make_plan,
    parse_plan,
    release,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vf_plan import (
    clashes,
    first_of,
    taken,
    with_prefix,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from hypothesis import given
from hypothesis import strategies as st

RAILS = [f"ib{rail}" for rail in range(4)]


def planned(hosts: Sequence[str], previous: AddressPlan | None = None, **more: Any) -> AddressPlan:
    """A plan in which every node has 16 VFs on each of four rails."""
    plan = make_plan(hosts, previous=previous, **more)
    plan = plan._replace(vf_prefix=previous.vf_prefix if previous else "")
    return with_prefix(plan, hosts, "rdm", {})


def wanted(plan: AddressPlan, hosts: Sequence[str], **changes: Any) -> dict[str, DesiredVfs]:
    return {host: DesiredVfs(RAILS, 16, first_of(plan, host))._replace(**changes) for host in hosts}


def macs(plan: AddressPlan) -> dict[str, list[str]]:
    return {
        node: [mac for rail in range(4) for mac in addresses(first_of(plan, node), rail, 16)]
        for node in plan.nodes
    }


def sentences(problems: list[Problem]) -> list[str]:
    return [f"{problem.node}: {problem.sentence}" for problem in problems]


# --- unique and stable ---


def test_macs_of_64_000_vfs_are_unique_as_nodes_come_and_go() -> None:
    hosts = [f"node{number}" for number in range(1000)]
    plan = planned(hosts)
    before = macs(plan)
    everything = [mac for listed in before.values() for mac in listed]
    assert len(set(everything)) == len(set(map(guid_of, everything))) == 64_000
    assert clashes(plan, wanted(plan, hosts)) == []

    shuffled = [host for host in hosts if not host.endswith("7")] + [f"new{number}" for number in range(300)]
    random.Random(1).shuffle(shuffled)
    after = planned(shuffled, plan)
    now = macs(after)
    assert {node: listed for node, listed in now.items() if node in before}.items() <= before.items()
    newcomers = {mac for node, listed in now.items() if node not in before for mac in listed}
    assert newcomers.isdisjoint(everything)  # not even those of nodes that have left


HOSTS = st.lists(st.sampled_from([f"n{number}" for number in range(12)]), min_size=1, unique=True)


@given(st.lists(HOSTS, min_size=1, max_size=6))
def test_any_history_keeps_every_vf(history: list[list[str]]) -> None:
    plan: AddressPlan | None = None
    known: dict[str, list[str]] = {}
    for hosts in history:
        plan = planned(hosts, plan)
        now = macs(plan)
        assert len({mac for listed in (known | now).values() for mac in listed}) == 64 * len(known | now)
        assert {node: listed for node, listed in now.items() if node in known}.items() <= known.items()
        assert parse_plan(format_plan(plan)) == plan
        known |= now


def test_a_released_address_and_its_vfs_may_be_given_away() -> None:
    plan = planned(["a", "b"])
    left = planned(["a"], plan)
    assert macs(planned(["a", "c"], left))["c"] != macs(plan)["b"]
    assert macs(planned(["a", "c"], release(left, ["b"])))["c"] == macs(plan)["b"]


def test_a_network_that_is_widened_keeps_them() -> None:
    hosts = [f"node{number}" for number in range(100)]
    plan = planned(hosts)
    wide = planned([*hosts, *(f"more{number}" for number in range(400))], plan, replace_network=True)
    assert wide.subnet.prefixlen == 16
    assert macs(plan).items() <= macs(wide).items()


# --- prefix ---


def test_other_clusters_have_another_prefix_and_the_plan_keeps_its_own() -> None:
    plan = planned(["a", "b"])
    assert plan == planned(["a", "b"])
    assert planned(["a", "c"]).vf_prefix != plan.vf_prefix
    assert with_prefix(make_plan(["a", "b"]), ["a"], "other", {}).vf_prefix != plan.vf_prefix
    assert with_prefix(make_plan(["a", "b"]), ["a"], "rdm", {"a": "10.0.0.1"}).vf_prefix != plan.vf_prefix
    assert planned(["x", "y"], plan).vf_prefix == plan.vf_prefix
    assert f"\nvf_prefix = {plan.vf_prefix}\n" in format_plan(plan)


@given(st.text(max_size=8))
def test_a_prefix_is_local_and_of_one_station_and_not_dockers(name: str) -> None:
    prefix = with_prefix(make_plan(["a"]), ["a"], name, {}).vf_prefix
    assert int(prefix[:2], 16) & 3 == 2
    assert prefix != "02:42"


def test_without_vfs_the_plan_file_has_none() -> None:
    plan = with_prefix(make_plan(["a"]), [], "rdm", {})
    assert "vf_prefix" not in format_plan(plan)
    assert first_of(plan, "a") == ""


@pytest.mark.parametrize("prefix", ["01:00", "00:5e", "06", "06:5e:01", "mine"])
def test_a_bad_prefix_in_the_plan_file_is_refused(prefix: str) -> None:
    text = format_plan(planned(["a"])._replace(vf_prefix=prefix))
    with pytest.raises(PlanFileError, match=r"^has a bad vf_prefix .*: it is two bytes"):
        parse_plan(text)


# --- duplicates ---


def test_addresses_of_which_macs_leave_out_the_difference_are_refused() -> None:
    plan = planned(["a", "b"], subnet="10.0.0.0/8", pins={"a": "10.0.0.7", "b": "10.16.0.7"})
    assert sentences(clashes(plan, wanted(plan, ["a", "b"]))) == [
        "b: its address 10.16.0.7 and 10.0.0.7 of a differ in what is left out of MACs, their first bits: "
        "choose a my_ip that differs in the last 20 bits"
    ]
    assert clashes(plan, {}) == []


def test_a_pinned_address_must_be_of_one_vf() -> None:
    plan = planned(["a", "b"])
    listed = [f"06:00:00:00:00:{number:02x}" for number in range(16)]
    theirs = macs(plan)["a"][16]
    pinned = wanted(plan, ["a"], addresses={"ib0": listed})
    want = pinned | wanted(plan, ["b"], addresses={"ib1": [guid_of(listed[0]), theirs]})
    hint = "give each VF its own in sriov_vf_addresses"
    assert sentences(clashes(plan, want)) == [
        f"b: the address 06:00:00:ff:fe:00:00:00 of VF 0 of ib1 is that of VF 0 of ib0 of a: {hint}",
        f"b: the address {theirs} of VF 1 of ib1 is that of VF 0 of ib1 of a: {hint}",
    ]
    # What a pin replaces is free for others.
    freed = pinned | wanted(plan, ["b"], addresses={"ib0": [macs(plan)["a"][0]]})
    assert clashes(plan, freed) == []


def test_the_addresses_of_a_first_mac_that_the_user_chose_must_be_of_one_node() -> None:
    plan = planned(["a", "b", "c"])
    mine = "02:00:00:00:10:00"
    own = wanted(plan, ["b", "c"], first_mac=mine)
    hint = "give each node its own sriov_vf_first_mac"
    assert sentences(clashes(plan, wanted(plan, ["a"]) | own)) == [
        f"c: the address {mine} of VF 0 of ib0 is that of VF 0 of ib0 of b: {hint}"
    ]
    theirs = first_of(plan, "a")
    assert sentences(clashes(plan, wanted(plan, ["a"]) | wanted(plan, ["b"], first_mac=theirs))) == [
        f"b: the address {theirs} of VF 0 of ib0 is that of VF 0 of ib0 of a: {hint}"
    ]
    assert clashes(plan, wanted(plan, ["a", "b"], first_mac="")) == [], "all keep theirs"
    # What it replaces is free for others.
    freed = wanted(plan, ["a"], first_mac=mine) | wanted(plan, ["b"], first_mac=theirs)
    assert clashes(plan, freed) == []
    assert clashes(plan, wanted(plan, ["a"]) | wanted(plan, ["b"], first_mac=mine)) == []


FACTS: Any = {"interfaces": [], "infiniband": [], "sriov": []}


def test_an_address_that_another_node_has_already_is_refused() -> None:
    plan = planned(["a", "b"])
    mac, other = macs(plan)["a"][0], macs(plan)["a"][17]
    guid = guid_of(other)
    words = guid.replace(":", "")
    found = FACTS | {
        "interfaces": [
            {"name": "eth0", "mac": mac},
            {"name": "ib0", "mac": f"00:00:10:29:fe:80:00:00:00:00:00:00:{guid}"},
            {"name": "lo", "mac": "00:00:00:00:00:00"},
        ],
        "infiniband": [
            {
                "name": "mlx5_0",
                "pci": "x",
                "node_guid": ":".join(words[at : at + 4] for at in range(0, 16, 4)),
            }
        ],
    }
    message = sentences(taken(plan, wanted(plan, ["a", "b"]), {"b": found}))
    assert [line.partition(": set others")[0] for line in message] == [
        f"a: the address {mac} of VF 0 of ib0 is that of the interface eth0 of b",
        f"a: the address {guid} of VF 1 of ib1 is that of the interface ib0 of b",
        f"a: the address {guid} of VF 1 of ib1 is that of the RDMA device mlx5_0 of b",
    ]
    assert taken(plan, wanted(plan, ["a", "b"]), {"a": found}) == []
    assert taken(plan, {}, {"b": found}) == []
    assert taken(plan, wanted(plan, ["b"]), {"b": found}) == []


def test_an_address_that_the_user_chose_and_another_node_has_already_is_refused() -> None:
    plan = planned(["a", "b"])
    want = wanted(plan, ["a"], first_mac="02:00:00:00:10:00")
    found = FACTS | {"interfaces": [{"name": "eth0", "mac": "02:00:00:00:11:03"}]}
    (line,) = sentences(taken(plan, want, {"b": found}))
    reason = "a: the address 02:00:00:00:11:03 of VF 3 of ib1 is that of the interface eth0 of b: "
    assert line == reason + "set another sriov_vf_first_mac"
    pinned = wanted(plan, ["a"], addresses={"ib1": [f"02:00:00:00:11:{number:02x}" for number in range(16)]})
    assert sentences(taken(plan, pinned, {"b": found})) == [reason + "set others in sriov_vf_addresses"]
    # The plan's address is not used then.
    planned_mac = FACTS | {"interfaces": [{"name": "eth0", "mac": first_of(plan, "a")}]}
    assert taken(plan, want, {"b": planned_mac}) == []


def test_vf_that_changes_its_address_in_this_run_is_no_conflict() -> None:
    plan = planned(["a", "b"])
    mac = macs(plan)["a"][0]
    vf = {"index": 0, "pci": "0000:41:00.1", "netdev": "ib4"}
    found = FACTS | {
        "interfaces": [{"name": "ib4", "mac": mac}],
        "infiniband": [{"name": "mlx5_1", "pci": "0000:41:00.1", "node_guid": guid_of(mac)}],
        "sriov": [{"pf": "ib0", "vfs": [vf]}],
    }
    assert taken(plan, wanted(plan, ["a", "b"]), {"b": found}) == []
    assert len(taken(plan, wanted(plan, ["a"]), {"b": found})) == 2
