"""The address plan: the rules one by one, and as properties over any history of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import (
    AddressPlan,
    PlanFileError,
    address_map,
    check_owner,
    format_plan,
    hostfile,
    make_plan,
    parse_plan,
    prefix_for,
    read_plan,
    release,
    write_plan,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_provision.cli.verbs.plan import plan as plan_verb
from tests.printed_hints import follow


def nodes(count: int, first: int = 0) -> list[str]:
    return [f"node{number}" for number in range(first, first + count)]


def sentences(refused: pytest.ExceptionInfo[PreconditionFailed]) -> list[str]:
    return [f"{problem.node or 'cluster'}: {problem.sentence}" for problem in refused.value.problems]


def releasing(before: AddressPlan) -> Callable[..., AddressPlan]:
    """The plan's part of ``rdm-provision plan --release``."""

    def run(*words: str) -> AddressPlan:
        options = plan_verb.make_context(words[0], list(words[1:])).params
        return release(before, options["release"])

    return run


# --- a fresh plan ---


@pytest.mark.parametrize(
    ("count", "subnet", "gateway", "master", "last"),
    [
        (1, "192.169.16.0/24", "192.169.16.1", "192.169.16.100", "192.169.16.100"),
        (155, "192.169.16.0/24", "192.169.16.1", "192.169.16.100", "192.169.16.254"),
        (156, "192.169.16.0/24", "192.169.16.254", "192.169.16.1", "192.169.16.156"),
        (253, "192.169.16.0/24", "192.169.16.254", "192.169.16.1", "192.169.16.253"),
        (254, "192.169.0.0/16", "192.169.0.1", "192.169.0.100", "192.169.1.97"),
        (65435, "192.169.0.0/16", "192.169.0.1", "192.169.0.100", "192.169.255.254"),
        (65436, "192.169.0.0/16", "192.169.255.254", "192.169.0.1", "192.169.255.156"),
        (65533, "192.169.0.0/16", "192.169.255.254", "192.169.0.1", "192.169.255.253"),
    ],
)
def test_default_subnet_is_laid_out_by_the_number_of_nodes(
    count: int, subnet: str, gateway: str, master: str, last: str
) -> None:
    plan = make_plan(nodes(count))
    addresses = list(plan.nodes.values())
    assert (str(plan.subnet), plan.gateway, addresses[0], addresses[-1]) == (subnet, gateway, master, last)


def test_more_nodes_than_the_default_subnet_can_hold_are_refused() -> None:
    with pytest.raises(
        PreconditionFailed, match=r"192\.169\.0\.0/16 is too small for 65534 nodes.*/15 or wider"
    ):
        make_plan(nodes(65534))


def test_small_subnet_starts_at_its_first_address() -> None:
    plan = make_plan(nodes(61), subnet="10.0.0.0/26")
    assert (plan.gateway, plan.nodes["node0"], plan.nodes["node60"]) == ("10.0.0.62", "10.0.0.1", "10.0.0.61")


def test_explicit_subnet_that_is_too_small_is_refused_with_the_prefix_that_would_do() -> None:
    with pytest.raises(
        PreconditionFailed, match=r"10\.0\.0\.0/26 is too small for 62 nodes.*room for 61.*a /25"
    ):
        make_plan(nodes(62), subnet="10.0.0.0/26")


@pytest.mark.parametrize(("count", "prefix"), [(1, 30), (2, 29), (5, 29), (6, 28), (253, 24), (254, 23)])
def test_prefix_for(count: int, prefix: int) -> None:
    assert prefix_for(count) == prefix


def test_gateway_of_the_users_choice_is_not_given_to_a_node() -> None:
    plan = make_plan(nodes(3), gateway="192.169.16.101")
    assert list(plan.nodes.values()) == ["192.169.16.100", "192.169.16.102", "192.169.16.103"]
    assert make_plan(nodes(155), gateway="192.169.16.101").nodes["node0"] == "192.169.16.1"


@pytest.mark.parametrize("gateway", ["192.169.16.0", "192.169.16.255", "10.0.0.1", "fe80::1", "nonsense"])
def test_bad_gateway_is_refused(gateway: str) -> None:
    with pytest.raises(
        PreconditionFailed, match=f"rdm_gateway {gateway} is .*192.169.16.1 to 192.169.16.254"
    ):
        make_plan(nodes(2), gateway=gateway)


@pytest.mark.parametrize(
    ("subnet", "reason"),
    [
        ("192.169.16.5/24", "has host bits set: the subnet is 192.169.16.0/24"),
        ("fd00::/64", "is IPv6, which is out of scope"),
        ("192.169.16.0", "is not a subnet in CIDR form"),
        ("192.169.16.0/33", "is not a subnet in CIDR form: write it like 192.169.16.0/24"),
        ("192.169.16.0/255.255.255.0", "is not a subnet in CIDR form"),
        ("$(reboot)", "is not a subnet in CIDR form"),
        ("10.0.0.0/31", "has no room for a gateway and a node"),
    ],
)
def test_malformed_subnet_is_refused_together_with_bad_pins(subnet: str, reason: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        make_plan(nodes(2), subnet=subnet, pins={"node1": "10.0.0.256"})
    assert reason in sentences(refused)[0]
    assert "node1: my_ip 10.0.0.256 is not an IPv4 address" in sentences(refused)[1]


# --- a plan that grows and shrinks ---


def test_growing_plan_keeps_its_gateway_and_fills_upward_then_below_the_master() -> None:
    small = make_plan(nodes(154))
    grown = make_plan(nodes(158), previous=small)
    assert grown.gateway == "192.169.16.1"
    assert {name: grown.nodes[name] for name in small.nodes} == small.nodes
    assert [grown.nodes[name] for name in nodes(4, 154)] == [
        "192.169.16.254",
        "192.169.16.2",
        "192.169.16.3",
        "192.169.16.4",
    ]


def test_full_plan_is_widened_only_on_request() -> None:
    full = make_plan(nodes(253))
    with pytest.raises(PreconditionFailed) as refused:
        make_plan(nodes(254), previous=full)
    assert "192.169.16.0/24 is too small for 254 nodes" in sentences(refused)[0]
    assert "widening it to 192.169.0.0/16 recreates the network on every node" in sentences(refused)[0]
    wide = make_plan(nodes(254), previous=full, replace_network=True)
    assert str(wide.subnet) == "192.169.0.0/16"
    assert {name: wide.nodes[name] for name in full.nodes} == full.nodes
    assert (wide.gateway, wide.nodes["node253"]) == (full.gateway, "192.169.0.100")
    assert make_plan(nodes(254), previous=wide) == wide


def test_full_plan_with_reservations_offers_to_release_them() -> None:
    full = make_plan(nodes(253))
    with pytest.raises(
        PreconditionFailed, match=r"removed nodes hold 1.*\(rdm-provision plan --release node252\)"
    ):
        make_plan([*nodes(252), "new"], previous=full)
    emptied = make_plan(nodes(252), previous=full)
    assert (
        make_plan([*nodes(252), "new"], previous=release(emptied, ["node252"])).nodes["new"]
        == (full.nodes["node252"])
    )


def test_explicit_subnet_is_never_widened() -> None:
    full = make_plan(nodes(61), subnet="10.0.0.0/26")
    with pytest.raises(PreconditionFailed, match=r"rdm_subnet 10\.0\.0\.0/26 is too small for 62 nodes.*/25"):
        make_plan(nodes(62), subnet="10.0.0.0/26", previous=full, replace_network=True)


def test_other_subnet_or_gateway_than_the_plans_is_refused_unless_requested() -> None:
    before = make_plan(nodes(2))
    with pytest.raises(
        PreconditionFailed, match=r"10\.9\.0\.0/24 differs .* 192\.169\.16\.0/24.*network_replace"
    ):
        make_plan(nodes(2), subnet="10.9.0.0/24", previous=before)
    with pytest.raises(PreconditionFailed, match=r"192\.169\.16\.9 differs from .* 192\.169\.16\.1:"):
        make_plan(nodes(2), gateway="192.169.16.9", previous=before)
    moved = make_plan(nodes(2), subnet="10.9.0.0/24", previous=before, replace_network=True)
    assert (moved.gateway, list(moved.nodes.values())) == ("10.9.0.1", ["10.9.0.100", "10.9.0.101"])
    other_gateway = make_plan(nodes(2), gateway="192.169.16.9", previous=before, replace_network=True)
    assert (other_gateway.gateway, other_gateway.nodes) == ("192.169.16.9", before.nodes)


def test_new_gateway_on_a_nodes_address_is_refused() -> None:
    before = make_plan(nodes(2))
    with pytest.raises(PreconditionFailed, match=r"node1: 192\.169\.16\.101 is both this node's"):
        make_plan(nodes(2), gateway="192.169.16.101", previous=before, replace_network=True)


def test_narrower_subnet_keeps_the_addresses_that_still_fit() -> None:
    before = make_plan(nodes(3), pins={"node1": "192.169.16.5"})
    narrow = make_plan(nodes(3), subnet="192.169.16.0/29", previous=before, replace_network=True)
    assert narrow.gateway == "192.169.16.1"
    assert narrow.nodes == {"node0": "192.169.16.2", "node1": "192.169.16.5", "node2": "192.169.16.3"}


def test_plans_subnet_stays_when_the_variable_goes() -> None:
    before = make_plan(nodes(2), subnet="10.9.0.0/24")
    assert make_plan(nodes(2), previous=before) == before


@pytest.mark.parametrize("new", [1, 3, 10, 11])
def test_suggested_release_makes_room_and_useless_ones_are_not_suggested(new: int) -> None:
    """A release after which the nodes still lack addresses is refused, and releases nothing."""
    kept, added = nodes(243), [f"new{number}" for number in range(new)]
    before = make_plan(kept, previous=make_plan(nodes(253)))
    with pytest.raises(PreconditionFailed) as refused:
        make_plan([*kept, *added], previous=before)
    message = str(refused.value)
    assert ("--release" in message) == (new <= 10)
    if new <= 10:
        first, *rest = list(before.removed)[:new]
        again = [word for node in rest for word in ("--release", node)] if "once for each" in message else []
        released = follow(message, "plan", releasing(before), *again, NODE=first)
        assert set(added) < set(make_plan([*kept, *added], previous=released).nodes)
        assert len(released.removed) == len(before.removed) - new


def test_release_names_addresses_that_it_cannot_release() -> None:
    plan = make_plan(["node0"], previous=make_plan(nodes(2)))
    # As the file itself says.
    assert follow(format_plan(plan), "plan --release", releasing(plan), NODE="node1").removed == {}
    with pytest.raises(
        PreconditionFailed, match="node7 has no reserved address: the removed nodes are node1"
    ):
        release(plan, ["node7"])
    with pytest.raises(PreconditionFailed, match="node0 is still in the inventory"):
        release(plan, ["node0"])


def test_a_plan_without_any_of_the_nodes_is_another_inventorys() -> None:
    plan = make_plan(["node0", "new"], previous=make_plan(nodes(2)))
    check_owner(plan, ["x", "node1"], "p")  # it was removed, and comes back
    with pytest.raises(
        PreconditionFailed,
        match=r"p is the plan of other nodes \(node0, new, node1\).*a directory of its own",
    ):
        check_owner(plan, ["x"], "p")


# --- pins ---


def test_pin_wins_over_the_nodes_own_address() -> None:
    before = make_plan(["node0", "node1"], previous=make_plan(nodes(3)))
    pinned = make_plan(["node0", "node1"], previous=before, pins={"node0": "192.169.16.9"})
    assert pinned.nodes == {"node0": "192.169.16.9", "node1": "192.169.16.101"}
    assert pinned.removed == {"node2": "192.169.16.102"}


def test_pin_on_a_reserved_address_is_refused_until_it_is_released() -> None:
    before = make_plan(["node0", "node1"], previous=make_plan(nodes(3)))
    pins = {"node0": "192.169.16.102"}
    with pytest.raises(PreconditionFailed) as refused:
        make_plan(["node0", "node1"], previous=before, pins=pins)
    assert sentences(refused) == [
        "node0: my_ip 192.169.16.102 is reserved for node2, which has left the inventory: choose a free one, "
        "for example 192.169.16.100, or release it first (rdm-provision plan --release node2)"
    ]
    released = follow(str(refused.value), "plan --release", releasing(before))
    assert make_plan(["node0", "node1"], previous=released, pins=pins).nodes["node0"] == "192.169.16.102"
    again = make_plan(["node0", "node1", "node2"], previous=before, pins={"node2": "192.169.16.102"})
    assert again.nodes["node2"] == "192.169.16.102", "its own may be pinned when it is back"


def test_the_advice_for_a_pin_leaves_the_gateway_out() -> None:
    with pytest.raises(PreconditionFailed, match=r"192\.169\.16\.254, but not the gateway 192\.169\.16\.1$"):
        make_plan(nodes(2), pins={"node1": "10.0.0.1"})


def test_two_pins_may_swap() -> None:
    before = make_plan(nodes(2))
    pins = {"node0": before.nodes["node1"], "node1": before.nodes["node0"]}
    assert make_plan(nodes(2), previous=before, pins=pins).nodes == pins


def test_pin_onto_another_nodes_address_is_refused_with_a_free_one() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        make_plan(nodes(3), previous=make_plan(nodes(3)), pins={"node2": "192.169.16.100"})
    assert sentences(refused) == [
        "node2: my_ip 192.169.16.100 is the address of node0: choose a free one, for example 192.169.16.102, "
        "or pin node0 to another address"
    ]


@pytest.mark.parametrize(
    ("pin", "reason"),
    [
        ("192.169.17.1", "is outside the subnet 192.169.16.0/24"),
        ("192.169.16.0", "is the network address"),
        ("192.169.16.255", "is the broadcast address"),
        ("192.169.16.1", "is the gateway's address"),
        ("192.169.16.7\n", "is not an IPv4 address"),
        ("fe80::1", "is an IPv6 address"),
    ],
)
def test_bad_pin_is_refused(pin: str, reason: str) -> None:
    with pytest.raises(PreconditionFailed, match=reason):
        make_plan(nodes(2), pins={"node1": pin})


def test_all_bad_pins_are_reported_at_once() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        make_plan(
            nodes(4),
            pins={"node0": "192.169.16.7", "node1": "192.169.16.7", "node2": "x", "node3": "192.169.16.1"},
        )
    assert [problem.node for problem in refused.value.problems] == ["node1", "node2", "node3"]


# --- properties ---

NAMES = st.sampled_from(nodes(40))
HOSTS = st.lists(NAMES, min_size=1, max_size=40, unique=True)
SUBNETS = st.sampled_from(["", "10.1.0.0/24", "10.1.0.0/25", "10.1.0.0/26", "10.1.0.0/16"])


def check_sound(plan: AddressPlan) -> None:
    addresses = [IPv4Address(at) for at in (*plan.nodes.values(), *plan.removed.values())]
    assert len(set(addresses)) == len(addresses)
    forbidden = {plan.subnet.network_address, plan.subnet.broadcast_address, IPv4Address(plan.gateway)}
    assert all(at in plan.subnet and at not in forbidden for at in addresses)
    assert IPv4Address(plan.gateway) in plan.subnet


@given(history=st.lists(HOSTS, min_size=1, max_size=8), subnet=SUBNETS)
def test_any_history_keeps_every_address(history: list[list[str]], subnet: str) -> None:
    plan: AddressPlan | None = None
    known: dict[str, str] = {}
    for hosts in history:
        before = plan
        plan = make_plan(hosts, subnet=subnet, previous=before)
        check_sound(plan)
        assert list(plan.nodes) == hosts
        assert plan == make_plan(hosts, subnet=subnet, previous=before)
        assert plan == make_plan(hosts, subnet=subnet, previous=plan)
        assert parse_plan(format_plan(plan)) == plan
        assert {name: (plan.nodes | plan.removed)[name] for name in known} == known
        assert before is None or (plan.subnet, plan.gateway) == (before.subnet, before.gateway)
        known = plan.nodes | plan.removed


@given(data=st.data())
def test_pins_win_over_any_previous_plan(data: st.DataObject) -> None:
    plan: AddressPlan | None = None
    problems: list[Problem] = []
    for _ in range(data.draw(st.integers(1, 5))):
        hosts = data.draw(HOSTS)
        offsets = st.lists(st.integers(2, 254), unique=True, min_size=len(hosts), max_size=len(hosts))
        addresses = [f"192.169.16.{offset}" for offset in data.draw(offsets)]
        pinned = data.draw(st.lists(st.sampled_from(hosts), unique=True))
        held = {} if plan is None else {at: name for name, at in (plan.removed | plan.nodes).items()}
        pins = {
            name: at
            for name, at in zip(hosts, addresses, strict=True)
            if name in pinned and (held.get(at) in pinned or at not in held)
        }
        pins = {name: at for name, at in pins.items() if held.get(at) in pins or at not in held}
        try:
            plan = make_plan(hosts, previous=plan, pins=pins)
        except PreconditionFailed as refused:
            problems += refused.problems
            continue
        check_sound(plan)
        assert {name: plan.nodes[name] for name in pins} == pins
    assert all("is the address of" in problem.reason for problem in problems)


@settings(max_examples=30)
@given(count=st.integers(1, 70), prefix=st.integers(24, 30))
def test_refused_subnet_names_the_longest_prefix_that_works(count: int, prefix: int) -> None:
    longest = prefix_for(count)
    check_sound(make_plan(nodes(count), subnet=f"10.0.0.0/{longest}"))
    if prefix > longest:
        with pytest.raises(PreconditionFailed, match=f"set rdm_subnet to a /{longest} or wider"):
            make_plan(nodes(count), subnet=f"10.0.0.0/{prefix}")


# --- the plan file and what is made from a plan ---


def test_plan_file_is_for_people_and_keeps_case(tmp_path: Path) -> None:
    plan = make_plan(["Master-1", "DEFAULT", "n.2"], previous=make_plan(["Master-1", "gone"]))
    path = tmp_path / "address_plan.cfg"
    write_plan(str(path), plan)
    assert "Master-1 = 192.169.16.100\n" in path.read_text()
    assert "[removed]\ngone = 192.169.16.101\n" in path.read_text()
    assert read_plan(str(path)) == plan
    assert [entry.name for entry in tmp_path.iterdir()] == ["address_plan.cfg"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_plan_file_keeps_the_fingerprints_of_the_keys_and_one_without_still_loads() -> None:
    plan = make_plan(["a"])
    assert parse_plan(format_plan(plan)).keys == {}
    keys = {"id_ed25519": "SHA256:8fX+/x", "host_ca": "SHA256:Jq0"}
    text = format_plan(plan._replace(keys=keys))
    assert "[ssh keys]\nid_ed25519 = SHA256:8fX+/x\nhost_ca = SHA256:Jq0\n" in text
    assert parse_plan(text) == plan._replace(keys=keys)


def test_missing_plan_file_is_no_plan(tmp_path: Path) -> None:
    assert read_plan(str(tmp_path / "address_plan.cfg")) is None


NETWORK = "[network]\nsubnet = 10.0.0.0/24\ngateway = 10.0.0.1\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "cannot be read"),
        ("[nodes]\na = 10.0.0.5\n", "lacks network"),
        ("[network]\nsubnet = 10.0.0.0/24\n", "lacks gateway"),
        ("[network]\nsubnet = 10.0.0.1/24\ngateway = 10.0.0.1\n", "has a bad subnet"),
        (NETWORK + "[nodes]\na = 10.0.0.x\n", "has a bad address for a"),
        (NETWORK + "[nodes]\na = 10.0.1.1\n", "gives a 10.0.1.1, which is not a usable address"),
        (NETWORK + "[nodes]\na = 10.0.0.1\n", "gives 10.0.0.1 twice, to gateway and to a"),
        (NETWORK + "[nodes]\na = 10.0.0.2\na = 10.0.0.3\n", "already exists"),
        (NETWORK + "[nodes]\na = 10.0.0.2\n[removed]\na = 10.0.0.3\n", "lists a as a node and as removed"),
        (NETWORK + "[ssh keys]\nhost_ca = x\n", "has a bad fingerprint of the ssh key host_ca: x"),
        (NETWORK + "[node]\na = 10.0.0.2\n", r"unknown section \[node\]"),
    ],
)
def test_damaged_plan_file_is_refused(text: str, reason: str) -> None:
    with pytest.raises(PlanFileError, match=reason):
        parse_plan(text)


def test_unreadable_plan_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="cannot be read"):
        read_plan(str(tmp_path))


def test_failed_write_leaves_the_old_plan_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "address_plan.cfg").mkdir()
    with pytest.raises(OSError, match=r"address_plan\.cfg"):
        write_plan(str(tmp_path / "address_plan.cfg"), make_plan(["a"]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["address_plan.cfg"]


def test_hostfile_and_address_map_list_the_master_first() -> None:
    plan = make_plan(["m", "w"])
    assert hostfile(plan, {"m": 8, "w": 4}) == "192.169.16.100 slots=8\n192.169.16.101 slots=4\n"
    assert address_map(plan) == "m 192.169.16.100\nw 192.169.16.101\n"
