# SPDX-License-Identifier: GPL-3.0-or-later
"""The address plan: each node's address (MY_IP) on the container network.

The plan is a pure function of the hosts, the settings, the pins and the previous plan. Its rules:

* A fresh plan gives the master (the first host) offset 100 of the subnet and the workers the addresses after
  it; the gateway is the first usable address. If there is no room, nodes start at offset 1 and the gateway is
  the last usable address. If there is still no room and the user set no subnet, the default subnet widens
  from 192.169.16.0/24 to 192.169.0.0/16.
* An existing plan keeps its addresses and its gateway. A new node takes the lowest free address from offset
  100 upward or, if those are used up, the lowest free one below.
* A removed node's address stays reserved until it is released.
* A pin (`my_ip`) wins over the node's former address; an address that the plan reserves for another node is
  refused.
* A change of subnet or gateway recreates the network on every node, so it is refused unless the user allows
it.

Addresses are integers internally, so that a plan of 65,000 nodes is fast.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from itertools import chain
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import NAMES_SHOWN, names
from ansible_collections.rdm.provision.plugins.module_utils.constants import PLAN_FILE
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.ipv4 import (
    HostRange,
    parse_subnet,
    to_int,
    to_text,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)

DEFAULT_SUBNET = IPv4Network("192.169.16.0/24")
WIDE_PREFIX = 16
MASTER_OFFSET = 100

_KEYS = "ssh keys"
_REPLACED = "replaced ssh authorities"
_VF_PREFIX = re.compile(r"[0-9a-f][26ae]:[0-9a-f]{2}")  # locally administered, of one station; IEEE 802
_HEADER = """\
# The address of each node on the container network, kept by rdm-provision. Commit it with the inventory.
# A removed node's address stays reserved until its line below [removed] is deleted
# (rdm-provision plan --release NODE does that).
"""


class AddressPlan(NamedTuple):
    """An address plan.

    Attributes:
        subnet: the container network's subnet.
        gateway: its gateway, never assigned to a node.
        nodes: node name -> address, master first, in inventory order.
        removed: name -> reserved address of nodes that left the inventory.
        keys: name of each ssh key of the cluster -> its fingerprint; empty before the keys are made.
        replaced: fingerprints of the cluster's former ssh authorities.
        vf_prefix: prefix of the MACs of its VFs, such as `06:5e`; empty before it has any.
    """

    subnet: IPv4Network
    gateway: str
    nodes: dict[str, str]
    removed: dict[str, str]
    keys: Mapping[str, str] = {}
    vf_prefix: str = ""
    replaced: tuple[str, ...] = ()


class PlanFileError(ValueError):
    """The plan file cannot be used; the text is one sentence that says why."""


def make_plan(
    hosts: Sequence[str],
    subnet: str = "",
    gateway: str = "",
    previous: AddressPlan | None = None,
    pins: Mapping[str, str] | None = None,
    replace_network: bool = False,
) -> AddressPlan:
    """Assign an address to every host.

    Args:
        hosts: all nodes of the inventory, the master first.
        subnet: the user's subnet (`rdm_subnet`), or empty.
        gateway: the user's gateway (`rdm_gateway`), or empty.
        previous: the previous plan, or None.
        pins: addresses that the inventory sets (`my_ip`), by node.
        replace_network: whether the user agrees to recreate the network on every node.

    Raises:
        PreconditionFailed: with every problem.
    """
    pins = {host: pins[host] for host in hosts if host in pins} if pins else {}
    try:
        wanted = parse_subnet(subnet) if subnet else None
    except ValueError as error:
        problem = Problem.of(None, f"rdm_subnet {subnet}", error)
        raise PreconditionFailed([problem, *_check_pins(pins, None, None)[1]]) from None
    settings = _Settings(wanted, gateway, pins, [])
    if previous is None:
        return _fresh_plan(hosts, settings)
    if not replace_network:
        settings.problems.extend(_other_network(settings, previous))
    if wanted is not None and not wanted.overlaps(previous.subnet):
        return _fresh_plan(hosts, settings)
    try:
        return _grown_plan(hosts, wanted or previous.subnet, settings, previous)
    except _FullError as full:
        if wanted is not None or previous.subnet.prefixlen <= WIDE_PREFIX:
            raise PreconditionFailed(
                [full.problem("rdm_subnet" if wanted else "the plan's subnet")]
            ) from None
        wide = previous.subnet.supernet(new_prefix=WIDE_PREFIX)
        if not replace_network:
            raise PreconditionFailed([full.widening(wide)]) from None
    try:
        return _grown_plan(hosts, wide, settings, previous)
    except _FullError as full:
        raise PreconditionFailed([full.problem("the plan's subnet")]) from None


def release(plan: AddressPlan, nodes: Iterable[str], hosts: Iterable[str] | None = None) -> AddressPlan:
    """Return the plan without the reservations of the removed `nodes`.

    Args:
        plan: the plan.
        nodes: names of removed nodes.
        hosts: the inventory's nodes; None if they are those of the plan.

    Raises:
        PreconditionFailed: a name is not that of a removed node.
    """
    released = set(nodes)
    present = set(plan.nodes if hosts is None else hosts)
    removed = {
        name: at for name, at in chain(plan.removed.items(), plan.nodes.items()) if name not in present
    }
    known = f"the removed nodes are {names(removed)}" if removed else "the plan reserves no address"
    problems = [
        Problem(
            None,
            node,
            "is still in the inventory" if node in present else "has no reserved address",
            "remove it from the inventory first" if node in present else known,
        )
        for node in sorted(released.difference(removed))
    ]
    if problems:
        raise PreconditionFailed(problems)
    return plan._replace(
        nodes={name: at for name, at in plan.nodes.items() if name not in released},
        removed={name: at for name, at in plan.removed.items() if name not in released},
    )


def check_owner(plan: AddressPlan, hosts: Iterable[str], path: str) -> None:
    """Check that the plan file at `path` is not that of another inventory in the same directory.

    Raises:
        PreconditionFailed: the plan has none of the inventory's nodes.
    """
    known = {**plan.nodes, **plan.removed}
    if known and known.keys().isdisjoint(hosts):
        reason = f"is the plan of other nodes ({names(known)}), and has none of this inventory"
        hint = "give each inventory a directory of its own, or delete the file if those nodes are gone"
        raise PreconditionFailed([Problem(None, path, reason, hint)])


def widened(plan: AddressPlan, previous: AddressPlan | None, subnet: str) -> str | None:
    """Return a sentence if the subnet was widened automatically."""
    before = previous.subnet if previous else DEFAULT_SUBNET
    if subnet or plan.subnet == before or not before.subnet_of(plan.subnet):
        return None
    return (
        f"The subnet {before} is too small for {len(plan.nodes)} nodes, so the container network gets "
        f"{plan.subnet}; rdm_subnet chooses another."
    )


def notes(plan: AddressPlan, previous: AddressPlan | None, pins: Mapping[str, str]) -> dict[str, str]:
    """Return for each node whether its address is pinned, new, kept or moved."""
    had = {**previous.removed, **previous.nodes} if previous else {}
    came = {name: "kept" if had.get(name) == at else "moved" for name, at in plan.nodes.items()}
    return {name: "pinned" if name in pins else how if name in had else "new" for name, how in came.items()}


# --- fresh and grown plans -------------------------------------------------------------------------


class _Settings(NamedTuple):
    """The user's settings, and the problems found so far."""

    subnet: IPv4Network | None
    gateway: str
    pins: Mapping[str, str]
    problems: list[Problem]


def _fresh_plan(hosts: Sequence[str], settings: _Settings) -> AddressPlan:
    """Make a plan without a previous one."""
    wide = DEFAULT_SUBNET.supernet(new_prefix=WIDE_PREFIX)
    candidates = [settings.subnet] if settings.subnet else [DEFAULT_SUBNET, wide]
    network = next((one for one in candidates if len(hosts) <= HostRange(one).size - 1), None)
    if network is None:
        full = _FullError(candidates[-1], len(hosts), ())
        problem = full.problem("rdm_subnet" if settings.subnet else "the default subnet")
        raise PreconditionFailed([*settings.problems, problem])
    usable = HostRange(network)
    master = usable.base + MASTER_OFFSET
    gateway = _choose_gateway(settings, network, usable.first)
    from_master = usable.last - master + (0 if gateway >= master else 1)
    if len(hosts) <= from_master:
        return _allot(hosts, network, gateway, MASTER_OFFSET, {}, {}, settings)
    gateway = _choose_gateway(settings, network, usable.last)
    return _allot(hosts, network, gateway, 1, {}, {}, settings)


def _grown_plan(
    hosts: Sequence[str], network: IPv4Network, settings: _Settings, previous: AddressPlan
) -> AddressPlan:
    """Extend a plan in `network`, which is its own subnet unless the network is recreated."""
    usable = HostRange(network)
    had = {name: to_int(at) for name, at in chain(previous.removed.items(), previous.nodes.items())}
    had = {name: at for name, at in had.items() if at in usable}
    present = set(hosts)
    kept = {host: had[host] for host in hosts if host in had and host not in settings.pins}
    reserved = {name: at for name, at in had.items() if name not in present}
    gateway = to_int(previous.gateway)
    if gateway not in usable:
        taken = {*had.values(), *_check_pins(settings.pins, network, None)[0].values()}
        gateway = next((at for at in range(usable.first, usable.last + 1) if at not in taken), usable.first)
    gateway = _choose_gateway(settings, network, gateway)
    start = MASTER_OFFSET if usable.size >= MASTER_OFFSET else 1
    return _allot(hosts, network, gateway, start, kept, reserved, settings)


def _choose_gateway(settings: _Settings, network: IPv4Network, otherwise: int) -> int:
    """Return the user's gateway if it is valid for `network`, else `otherwise`."""
    if settings.gateway:
        try:
            gateway = to_int(settings.gateway)
        except ValueError:
            return otherwise
        if gateway in HostRange(network):
            return gateway
    return otherwise


def _allot(
    hosts: Sequence[str],
    network: IPv4Network,
    gateway: int,
    start: int,
    kept: Mapping[str, int],
    reserved: Mapping[str, int],
    settings: _Settings,
) -> AddressPlan:
    """Assign pins, then kept addresses, then free ones: from offset `start` upward, then below it."""
    usable = HostRange(network)
    pinned, problems = _check_pins(settings.pins, network, gateway)
    problems = [*settings.problems, *_check_gateway(settings.gateway, network), *problems]
    held = {at: host for host, at in kept.items()}
    if gateway in held:
        problems.append(
            Problem(
                held[gateway],
                to_text(gateway),
                "is both this node's address and the gateway",
                "choose another rdm_gateway, or pin the node to another address with my_ip",
            )
        )
    free = _free_addresses(usable, start, {gateway, *kept.values(), *pinned.values(), *reserved.values()})
    problems += [
        Problem(
            host,
            f"my_ip {to_text(at)}",
            f"is the address of {held[at]}",
            f"choose a free one{_example(free)}, or pin {held[at]} to another address",
        )
        for host, at in pinned.items()
        if at in held
    ]
    left = {at: name for name, at in reserved.items()}
    problems += [
        Problem(
            host,
            f"my_ip {to_text(at)}",
            f"is reserved for {left[at]}, which has left the inventory",
            f"choose a free one{_example(free)}, or release it first "
            f"(rdm-provision plan --release {left[at]})",
        )
        for host, at in pinned.items()
        if at in left
    ]
    if problems:
        raise PreconditionFailed(problems)

    addresses = {**kept, **pinned}
    addresses.update(zip((host for host in hosts if host not in addresses), free, strict=False))
    if len(addresses) < len(hosts):
        raise _FullError(network, len(hosts), reserved)
    taken = {gateway, *pinned.values()}
    return AddressPlan(
        subnet=network,
        gateway=to_text(gateway),
        nodes={host: to_text(addresses[host]) for host in hosts},
        removed={name: to_text(at) for name, at in reserved.items() if at not in taken},
    )


def _free_addresses(usable: HostRange, start: int, taken: set[int]) -> Iterator[int]:
    upward = range(usable.base + start, usable.last + 1)
    below = range(usable.first, min(usable.base + start, usable.last + 1))
    return (at for at in chain(upward, below) if at not in taken)


# --- checks ----------------------------------------------------------------------------------------


class _FullError(Exception):
    """Not every host got an address."""

    def __init__(self, network: IPv4Network, hosts: int, reserved: Iterable[str]) -> None:
        super().__init__()
        self.network = network
        self.hosts = hosts
        self.reserved = list(reserved)

    def _reason(self) -> str:
        room = HostRange(self.network).size - 1
        held = ""
        if self.reserved:
            held = f", of which removed nodes hold {len(self.reserved)} ({names(self.reserved)})"
        return f"is too small for {self.hosts} nodes: it has room for {room}{held}"

    def problem(self, value: str) -> Problem:
        """Return the problem, with the prefix that would suffice."""
        prefix = prefix_for(self.hosts + len(self.reserved))
        hint = f"set rdm_subnet to a /{prefix} or wider{self._or_release()}"
        return Problem(None, f"{value} {self.network}", self._reason(), hint)

    def _or_release(self) -> str:
        """Return the hint to release addresses, if that makes enough room."""
        lacking = self.hosts + len(self.reserved) - (HostRange(self.network).size - 1)
        if not 0 < lacking <= len(self.reserved):
            return ""
        words = " ".join(f"--release {node}" for node in self.reserved[:lacking])
        if lacking > NAMES_SHOWN:
            words = "--release NODE, once for each"
        what = "the address of a removed node" if lacking == 1 else f"{lacking} addresses of removed nodes"
        return f", or release {what} (rdm-provision plan {words})"

    def widening(self, wide: IPv4Network) -> Problem:
        """Return the problem, with the cost of a wider subnet."""
        hint = (
            f"widening it to {wide} recreates the network on every node; "
            f"set network_replace: true to do so (addresses in use are kept){self._or_release()}"
        )
        return Problem(None, f"the plan's subnet {self.network}", self._reason(), hint)


def prefix_for(nodes: int) -> int:
    """Return the longest prefix whose subnet holds `nodes` nodes and a gateway."""
    return next(prefix for prefix in range(30, -1, -1) if 2 ** (32 - prefix) - 3 >= nodes)


def _check_pins(
    pins: Mapping[str, str], network: IPv4Network | None, gateway: int | None
) -> tuple[dict[str, int], list[Problem]]:
    """Return the pins as integers, and what is wrong with them; without a network, check only their form."""
    usable = HostRange(network) if network else None
    but = f", but not the gateway {to_text(gateway)}" if gateway is not None else ""
    choose = f"choose an address from {usable}{but}" if usable else "correct it in the inventory"
    pinned: dict[str, int] = {}
    problems: list[Problem] = []
    users: dict[int, str] = {}
    for host, text in pins.items():
        hint = choose
        try:
            at = to_int(text)
        except ValueError as error:
            problems.append(Problem(host, f"my_ip {text}", str(error), choose))
            continue
        reason = ""
        if usable and at == usable.base:
            reason = f"is the network address of {network}"
        elif usable and at == usable.last + 1:
            reason = f"is the broadcast address of {network}"
        elif usable and at not in usable:
            reason = f"is outside the subnet {network}"
        elif at == gateway:
            reason = "is the gateway's address"
            hint = "choose another address, or set rdm_gateway to another one"
        elif at in users:
            reason = f"is used twice, by {users[at]} as well"
            hint = "give each node an address of its own"
        if reason:
            problems.append(Problem(host, f"my_ip {text}", reason, hint))
        else:
            users[at] = host
            pinned[host] = at
    return pinned, problems


def _check_gateway(text: str, network: IPv4Network) -> list[Problem]:
    usable = HostRange(network)
    try:
        if not text or to_int(text) in usable:
            return []
        reason = f"is not a usable address of {network}"
    except ValueError as error:
        reason = str(error)
    hint = (
        f"choose an address from {to_text(usable.first)} to {to_text(usable.last)}, or leave rdm_gateway out"
    )
    return [Problem(None, f"rdm_gateway {text}", reason, hint)]


def _other_network(settings: _Settings, previous: AddressPlan) -> list[Problem]:
    """Return a problem if the user sets another subnet or gateway than the plan's."""
    if settings.subnet is not None and settings.subnet != previous.subnet:
        variable, what = "rdm_subnet", "subnet"
        requested, planned = str(settings.subnet), str(previous.subnet)
    elif settings.gateway and settings.gateway != previous.gateway:
        variable, what = "rdm_gateway", "gateway"
        requested, planned = settings.gateway, previous.gateway
    else:
        return []
    return [
        Problem(
            None,
            f"{variable} {requested}",
            f"differs from the address plan's {what} {planned}",
            "changing it recreates the network on every node; "
            f"set network_replace: true to do so, or go back to {planned}",
        )
    ]


def _example(free: Iterator[int]) -> str:
    first = next(free, None)
    return f", for example {to_text(first)}" if first is not None else ""


# --- the plan file ---------------------------------------------------------------------------------


def format_plan(plan: AddressPlan) -> str:
    """Return the text of the plan file."""
    lines = [_HEADER, "[network]", f"subnet = {plan.subnet}", f"gateway = {plan.gateway}"]
    if plan.vf_prefix:
        lines += [
            "# MACs and GUIDs of virtual functions begin with it; give each cluster of a fabric its own."
        ]
        lines += [f"vf_prefix = {plan.vf_prefix}"]
    lines.append("")
    if plan.keys:
        lines += ["# Who changes the cluster must have these keys: see container_ssh_key_dir.", f"[{_KEYS}]"]
        lines += [*(f"{name} = {fingerprint}" for name, fingerprint in plan.keys.items()), ""]
    if plan.replaced:
        lines += ["# A node that was away when the keys were replaced may still have one of these."]
        lines += [f"[{_REPLACED}]"]
        lines += [*(f"{number} = {at}" for number, at in enumerate(plan.replaced, 1)), ""]
    lines.append("[nodes]")
    lines += [f"{name} = {at}" for name, at in plan.nodes.items()]
    if plan.removed:
        lines += ["", "[removed]"]
        lines += [f"{name} = {at}" for name, at in plan.removed.items()]
    return "\n".join(lines) + "\n"


def parse_plan(text: str) -> AddressPlan:
    """Return the plan in the text of a plan file.

    Raises:
        PlanFileError: the text is not a plan, or contradicts itself.
    """
    parser = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=("#", ";"), interpolation=None, default_section="\0", strict=True
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text, source=PLAN_FILE)
    except configparser.Error as error:
        raise PlanFileError("cannot be read: " + " ".join(str(error).split())) from None
    unknown = set(parser.sections()) - {"network", "nodes", "removed", _KEYS, _REPLACED}
    if unknown:
        raise PlanFileError(f"has an unknown section [{sorted(unknown)[0]}]")
    try:
        subnet_text, gateway = parser["network"]["subnet"], parser["network"]["gateway"]
    except KeyError as error:
        raise PlanFileError(f"lacks {error.args[0]} (section [network] needs subnet and gateway)") from None
    try:
        subnet = parse_subnet(subnet_text)
    except ValueError as error:
        raise PlanFileError(f"has a bad subnet: {subnet_text} {error}") from None
    nodes = dict(parser["nodes"]) if parser.has_section("nodes") else {}
    removed = dict(parser["removed"]) if parser.has_section("removed") else {}
    keys = dict(parser[_KEYS]) if parser.has_section(_KEYS) else {}
    replaced = dict(parser[_REPLACED]) if parser.has_section(_REPLACED) else {}
    for name, fingerprint in chain(keys.items(), replaced.items()):
        if not fingerprint.startswith("SHA256:"):
            raise PlanFileError(f"has a bad fingerprint of the ssh key {name}: {fingerprint}")
    _check_consistency(subnet, gateway, nodes, removed)
    vf_prefix = parser["network"].get("vf_prefix", "")
    if vf_prefix and not _VF_PREFIX.fullmatch(vf_prefix):
        raise PlanFileError(
            f"has a bad vf_prefix {vf_prefix}: it is two bytes, the first ending in 2, 6, a or e, as 06:5e"
        )
    return AddressPlan(subnet, gateway, nodes, removed, keys, vf_prefix, tuple(replaced.values()))


def _check_consistency(
    subnet: IPv4Network, gateway: str, nodes: Mapping[str, str], removed: Mapping[str, str]
) -> None:
    usable = HostRange(subnet)
    users: dict[int, str] = {}
    for name, text in chain([("gateway", gateway)], nodes.items(), removed.items()):
        try:
            at = to_int(text)
        except ValueError as error:
            raise PlanFileError(f"has a bad address for {name}: {text} {error}") from None
        if at not in usable:
            raise PlanFileError(f"gives {name} {text}, which is not a usable address of {subnet}")
        if at in users:
            raise PlanFileError(f"gives {text} twice, to {users[at]} and to {name}")
        users[at] = name
    both = next((name for name in nodes if name in removed), None)
    if both is not None:
        raise PlanFileError(f"lists {both} as a node and as removed")


def read_plan(path: str) -> AddressPlan | None:
    """Return the plan in the file at `path`; None if there is no such file.

    Raises:
        PlanFileError: the file cannot be read or is not a plan.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            return parse_plan(stream.read())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanFileError(f"cannot be read: {error}") from None


def write_plan(path: str, plan: AddressPlan) -> None:
    """Write the plan file atomically; if it is a link, write its target.

    Raises:
        OSError: the directory cannot be written to.
    """
    write_whole(os.path.realpath(path), format_plan(plan).encode(), 0o644)


# --- texts for other tools -------------------------------------------------------------------------


def hostfile(plan: AddressPlan, slots: Mapping[str, int]) -> str:
    """Return DeepSpeed's hostfile: `MY_IP slots=N`, master first."""
    return "".join(f"{at} slots={slots[name]}\n" for name, at in plan.nodes.items())


def address_map(plan: AddressPlan) -> str:
    """Return the node -> MY_IP map as text, one node per line, master first."""
    return "".join(f"{name} {at}\n" for name, at in plan.nodes.items())
