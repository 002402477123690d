# SPDX-License-Identifier: GPL-3.0-or-later
"""Works out the changes to a physical function (PF) from its observed and its desired state; pure.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Collection, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import (
    GUID_BYTES,
    MAC_BYTES,
    bytes_of,
    guid_of,
)
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import (
    CONTAINER,
    PCI_DEVICES,
    POLICIES,
    Pf,
    Vf,
)

_PROBE = "bus/pci/drivers_probe"
_STATES = {policy: state for state, policy in POLICIES.items()}


class DesiredPf(NamedTuple):
    """The desired state of a PF. A setting that is None or empty stays unchanged.

    Attributes:
        pf: the PF's interface or PCI address.
        number: how many VFs.
        addresses: their MACs or GUIDs, in order, as bytes with colons. On InfiniBand a MAC means its EUI-64.
        policy: Follow, Up or Down; only on InfiniBand.
        vlan: 0 for none; this and the next two are only for Ethernet.
        trust: whether VFs may choose their own addresses.
        spoof_check: whether packets with other senders are dropped.
    """

    pf: str
    number: int
    addresses: Sequence[str] = ()
    policy: str = ""
    vlan: Optional[int] = None
    trust: Optional[bool] = None
    spoof_check: Optional[bool] = None

    def address(self, number: int, infiniband: bool) -> str:
        """Return the MAC or GUID of a VF; empty if it may keep its own."""
        if number >= len(self.addresses):
            return ""
        text = self.addresses[number]
        return guid_of(text) if infiniband and bytes_of(text) == MAC_BYTES else text


class Step(NamedTuple):
    """One change.

    Attributes:
        says: the change, as a clause that follows "cannot".
        path: the sysfs file to write; empty if `ip` makes the change.
        text: what to write.
        ip: the arguments of `ip`.
    """

    says: str
    path: str = ""
    text: str = ""
    ip: Tuple[str, ...] = ()


class Difference(NamedTuple):
    """A setting of a VF that differs from the desired one."""

    what: str
    found: str
    wanted: str
    steps: Tuple[Step, ...]
    rebind: bool


def problems(found: Pf, wanted: DesiredPf, ending: int = 0) -> List[str]:
    """Return why a PF cannot be changed, in sentences.

    Args:
        found: the PF.
        wanted: its desired state.
        ending: how many of its VFs are in containers that end before the work begins.
    """
    unfit = _unfit(found, wanted)
    if unfit:
        return [unfit]
    wrong = list(_wrong_settings(found, wanted))
    unplugged = _unplugged(found, wanted)
    if unplugged:
        return [*wrong, unplugged]
    steps = next_steps(found, wanted)
    if not steps:
        return wrong
    # Binding an unused VF does not disturb the users of others.
    only_binds = all(step.path == _PROBE for step in steps)
    held = [] if only_binds else [vf for vf in found.vfs if vf.holder]
    # The kernel does not show which container has a VF. VFs beyond `ending` are in other containers.
    if len(held) > (ending if all(vf.holder == CONTAINER for vf in held) else 0):
        wrong.append(
            "{0} cannot be changed ({1}) while {2}: end what uses {3}, then run again".format(
                found.name,
                "; ".join(_needs(found, wanted)),
                " and ".join("{0} has {1}".format(vf.holder, _name(vf, found)) for vf in held),
                "it" if len(held) == 1 else "them",
            )
        )
    used = [vf for vf in found.vfs if vf.host_use and _takes_away(steps, vf)]
    if used:
        wrong.append(
            "{0} cannot be changed ({1}) while the node itself uses {2}: take {3} out of use on the node, "
            "then run again".format(
                found.name,
                "; ".join(_needs(found, wanted)),
                " and ".join("{0}, whose {1}".format(_name(vf, found), host_use(vf)) for vf in used),
                "it" if len(used) == 1 else "them",
            )
        )
    return wrong


def host_use(vf: Vf) -> str:
    """Return how the node itself uses a VF, as a clause; empty if it does not."""
    return "interface {0.interface} {0.host_use}".format(vf) if vf.host_use else ""


def next_steps(found: Pf, wanted: DesiredPf) -> List[Step]:
    """Return the next changes. Call it again afterwards: VFs have PCI addresses only once they exist."""
    device = "{0}/{1}".format(PCI_DEVICES, found.pci)
    steps: List[Step] = []
    if found.number != wanted.number or not found.whole:
        if found.number:
            # The kernel changes the number only from or to zero.
            steps.append(_number_step(device, found, 0))
        if wanted.number:
            # A driver reads the address when it binds, so bind it only after the address is set.
            bare = bool(wanted.addresses)
            if found.autoprobe is bare:
                steps.append(_autoprobe(device, found, on=not bare))
            steps.append(_number_step(device, found, wanted.number))
        return steps
    binds: List[Step] = []
    for vf in found.there:
        differences = list(_differences(found, vf, wanted))
        rebind = bool(vf.driver) and any(one.rebind for one in differences)
        if rebind:
            path = "{0}/{1}/driver/unbind".format(PCI_DEVICES, vf.pci)
            steps.append(Step("unbind {0}".format(_name(vf, found)), path, vf.pci))
        for difference in differences:
            steps += difference.steps
        if rebind or not vf.driver:
            binds.append(Step("bind {0}".format(_name(vf, found)), _PROBE, vf.pci))
    # At the very end: a driver that udev loads meanwhile would take every VF, with or without its address.
    if binds and found.autoprobe is False:
        steps.append(_autoprobe(device, found, on=True))
    return steps + binds


def described(found: Pf) -> str:
    """Return a PF and its VFs as text, one line each."""
    lines = [_header(found, found.number)]
    for vf in found.vfs:
        lines.append("VF {0} ({1}): {2}".format(vf.number, vf.pci or "vanished", _settings(found, vf)))
    return "".join(line + "\n" for line in lines)


def planned(found: Pf, wanted: DesiredPf) -> str:
    """Return the lines of :func:`described` for the desired state of the PF."""
    kept = found.number == wanted.number and found.whole
    lines = [_header(found, wanted.number)]
    for number in range(wanted.number):
        vf = found.vfs[number] if kept else Vf(number, "", driver="new")
        if found.infiniband:
            address = wanted.address(number, True)
            vf = vf._replace(
                policy=wanted.policy or vf.policy, address=address or vf.address, port=address or vf.port
            )
        else:
            vf = vf._replace(
                address=wanted.address(number, False) or vf.address,
                vlan=vf.vlan if wanted.vlan is None else wanted.vlan,
                trust=vf.trust if wanted.trust is None else wanted.trust,
                spoof_check=vf.spoof_check if wanted.spoof_check is None else wanted.spoof_check,
            )
        where = vf.pci or "address follows"
        lines.append("VF {0} ({1}): {2}".format(number, where, _settings(found, vf._replace(driver="bound"))))
    return "".join(line + "\n" for line in lines)


def state_of(vf: Vf, shows: Collection[str]) -> str:
    """Return the state of a VF to record, so that a later change is noticed.

    Args:
        vf: the VF.
        shows: the settings to include: address, policy, vlan, trust, spoof_check. Others set the rest, such
            as the VLAN of a container's network.
    """
    states = {
        "address": " and ".join(sorted({vf.address, vf.port} - {""})),
        "policy": vf.policy,
        "vlan": vf.vlan is not None and "VLAN {0}".format(vf.vlan),
        "trust": vf.trust is not None and "trust {0}".format(_on(vf.trust)),
        "spoof_check": vf.spoof_check is not None and "spoof check {0}".format(_on(vf.spoof_check)),
    }
    shown = [state for name, state in states.items() if name in shows and state]
    return " with ".join(filter(None, ["bound" if vf.driver else "unbound", ", ".join(shown)]))


# --- what stands against it ----------------------------------------------------------------------------


def _unfit(found: Pf, wanted: DesiredPf) -> str:
    """Return why a PF cannot have these VFs at all; empty if it can."""
    if found.driver == "mlx4_core":
        return (
            "{0} has the driver mlx4_core (ConnectX-3), which makes its VFs when it is loaded and gives both "
            "ports one function: set num_vfs and probe_vf among its module options, and sriov_vfs: 0".format(
                found.name
            )
        )
    if found.bond:
        return (
            "{0} is in the bond {1}, with which its VFs would not fail over: name a function in no "
            "bond".format(found.name, found.bond)
        )
    if found.total < 1:
        return (
            "{0} (driver {1}) has no SR-IOV: the kernel lacks CONFIG_PCI_IOV, or it is off in the card "
            "({2})".format(found.name, found.driver or "none", _in_firmware(found, max(wanted.number, 1)))
        )
    if wanted.number > found.total:
        return (
            "{0} can have {1} VFs, and {2} are wanted: set sriov_vfs to {1} at most, or allow more "
            "({3})".format(found.name, found.total, wanted.number, _in_firmware(found, wanted.number))
        )
    return ""


def _unplugged(found: Pf, wanted: DesiredPf) -> str:
    """Return that a single VF was unplugged, which the kernel cannot undo; empty if none was.

    Its entry `virtfnN` stays (pci_iov_remove_virtfn() finds no device to remove it with), so creating VFs
    again fails with EEXIST: drivers/pci/iov.c.
    """
    gone = [str(vf.number) for vf in found.vfs if not vf.pci and vf.number < wanted.number]
    if not gone:
        return ""
    return (
        "{0} has lost VF {1}, unplugged by itself, and the kernel makes none in its place while it knows the "
        "card: end what uses {0} and its VFs, make the kernel find the card again (echo 1 > "
        "/sys/{2}/{3}/remove, then echo 1 > /sys/bus/pci/rescan) or restart the node, then run again".format(
            found.name, ", ".join(gone), PCI_DEVICES, found.pci
        )
    )


def _in_firmware(found: Pf, number: int) -> str:
    if found.driver == "mlx5_core":
        command = "mlxconfig -d {0} set SRIOV_EN=1 NUM_OF_VFS={1}"
        return command.format(found.pci, number) + ", then restart the node"
    return "in its firmware or the BIOS, as far as the card goes"


def _wrong_settings(found: Pf, wanted: DesiredPf) -> Iterator[str]:
    if wanted.addresses and len(wanted.addresses) < wanted.number:
        yield "{0} is to have {1} VFs, and there are addresses for {2}".format(
            found.name, wanted.number, len(wanted.addresses)
        )
    long = next((text for text in wanted.addresses if bytes_of(text) == GUID_BYTES), "")
    if long and not found.infiniband:
        yield "{0} is Ethernet, and {1} is a GUID: give its VFs MACs".format(found.name, long)
    if found.infiniband:
        requested = [
            what
            for what, value in (
                ("VLAN", wanted.vlan),
                ("trust", wanted.trust),
                ("spoof check", wanted.spoof_check),
            )
            if value is not None
        ]
        if requested:
            yield "{0} is InfiniBand, whose VFs have no {1}: leave it out".format(
                found.name, " or ".join(requested)
            )
        mute = [vf for vf in found.there if not vf.policy and not vf.address]
        if mute and (wanted.policy or wanted.addresses):
            yield (
                "neither sysfs nor ip link shows policy and GUIDs of the VFs of {0}: its driver {1} "
                "cannot set them, or iproute2 is older than 5.5".format(found.name, found.driver)
            )


def _takes_away(steps: Sequence[Step], vf: Vf) -> bool:
    """Whether steps remove a VF's interface: a new number removes all, unbinding a driver one."""
    return any(
        step.path.endswith("/sriov_numvfs") or (step.path.endswith("/driver/unbind") and step.text == vf.pci)
        for step in steps
    )


def _needs(found: Pf, wanted: DesiredPf) -> Iterator[str]:
    """Yield why a PF needs a change."""
    if found.number != wanted.number:
        yield "it has {0} VFs, not {1}".format(found.number, wanted.number)
    elif not found.whole:
        there = {vf.number for vf in found.there}
        gone = [str(number) for number in range(found.number) if number not in there]
        yield "VF {0} has vanished".format(", ".join(gone))
    else:
        for vf in found.there:
            wrong = [
                "{0.what} {0.found}, not {0.wanted}".format(one) for one in _differences(found, vf, wanted)
            ]
            if not vf.driver:
                wrong.append("no driver")
            if wrong:
                yield "VF {0} has {1}".format(vf.number, ", ".join(wrong))
                return  # one example is enough


# --- the steps -----------------------------------------------------------------------------------------


def _differences(found: Pf, vf: Vf, wanted: DesiredPf) -> Iterator[Difference]:
    """Yield the settings that differ; addresses first, since a driver reads them when it binds."""
    address = wanted.address(vf.number, found.infiniband)
    if not found.infiniband:
        settings = (
            ("MAC", "mac", vf.address, address, True),
            ("VLAN", "vlan", _text(vf.vlan), _text(wanted.vlan), False),
            ("trust", "trust", _on(vf.trust), _on(wanted.trust), False),
            ("spoof check", "spoofchk", _on(vf.spoof_check), _on(wanted.spoof_check), False),
        )
        for what, word, is_now, requested, rebind in settings:
            if requested and requested != is_now:
                yield Difference(
                    what,
                    is_now or "unknown",
                    requested,
                    (_ip_step(found, vf, what, word, requested),),
                    rebind,
                )
        if vf.interface and address and address == vf.address != vf.mac:
            yield Difference("MAC", "{0} in its driver".format(vf.mac or "none"), address, (), True)
        return
    for what, file, word, is_now in (
        ("node GUID", "node", "node_guid", vf.address),
        ("port GUID", "port", "port_guid", vf.port),
    ):
        if address and address != is_now:
            step = (
                _file_step(found, vf, what, file, address)
                if vf.by_files
                else _ip_step(found, vf, what, word, address)
            )
            yield Difference(what, is_now or "unknown", address, (step,), True)
    if wanted.policy and wanted.policy != vf.policy:
        step = (
            _file_step(found, vf, "policy", "policy", wanted.policy)
            if vf.by_files
            else _ip_step(found, vf, "policy", "state", _STATES[wanted.policy])
        )
        yield Difference("policy", vf.policy or "unknown", wanted.policy, (step,), False)


def _file_step(found: Pf, vf: Vf, what: str, file: str, text: str) -> Step:
    path = "{0}/{1}/sriov/{2}/{3}".format(PCI_DEVICES, found.pci, vf.number, file)
    return Step("set the {0} of {1}".format(what, _name(vf, found)), path, text)


def _ip_step(found: Pf, vf: Vf, what: str, word: str, text: str) -> Step:
    words = ("link", "set", "dev", found.name, "vf", str(vf.number), word, text)
    return Step("set the {0} of {1}".format(what, _name(vf, found)), ip=words)


def _number_step(device: str, found: Pf, number: int) -> Step:
    return Step("give {0} {1} VFs".format(found.name, number), "{0}/sriov_numvfs".format(device), str(number))


def _autoprobe(device: str, found: Pf, on: bool) -> Step:
    return Step(
        "let new VFs of {0} {1} drivers".format(found.name, "get" if on else "be without"),
        "{0}/sriov_drivers_autoprobe".format(device),
        "1" if on else "0",
    )


# --- words ---------------------------------------------------------------------------------------------


def _name(vf: Vf, found: Pf) -> str:
    return "VF {0} of {1} ({2})".format(vf.number, found.name, vf.pci or "vanished")


def _header(found: Pf, number: int) -> str:
    return "{0} ({1}): {2} VFs".format(found.name, found.pci, number)


def _settings(found: Pf, vf: Vf) -> str:
    if found.infiniband:
        shown = [("policy", vf.policy), ("node GUID", vf.address), ("port GUID", vf.port)]
    else:
        shown = [("MAC", vf.address), ("VLAN", _text(vf.vlan))]
        shown += [("trust", _on(vf.trust)), ("spoof check", _on(vf.spoof_check))]
    words = ["bound" if vf.driver else "unbound"]
    return ", ".join(words + ["{0} {1}".format(what, value) for what, value in shown if value])


def _on(value: Optional[bool]) -> str:
    return "" if value is None else ("on" if value else "off")


def _text(value: Optional[int]) -> str:
    return "" if value is None else str(value)
