"""VFs are found by address, whatever their interfaces are called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    NodeVfs,
    Vf,
    VfProblem,
)


def interface(root: Path, name: str, pci: str, kind: int = 1) -> None:
    """Make an interface of a PCI function; without an address one that is of none."""
    entry = root / "class/net" / name
    if pci:
        device = root / "bus/pci/devices" / pci
        target = device / "net" / name
        target.mkdir(parents=True)
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.symlink_to(target)
        (target / "device").symlink_to(device)
    else:
        entry.mkdir(parents=True)
    (entry / "type").write_text(f"{kind}\n")
    (entry / "address").write_text(f"02:00:00:00:00:{pci[-1:] or 0:0>2}\n".upper())


def physical(root: Path, name: str, pci: str, virtual: dict[int, str], total: int = 8) -> None:
    """Make a physical function with VFs: their addresses by number."""
    interface(root, name, pci)
    device = root / "bus/pci/devices" / pci
    (device / "sriov_totalvfs").write_text(f"{total}\n")
    for number, address in virtual.items():
        (root / "bus/pci/devices" / address / "net").mkdir(parents=True, exist_ok=True)
        (device / f"virtfn{number}").symlink_to(root / "bus/pci/devices" / address)


def test_vfs_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    physical(tmp_path, "ib0", "0000:3b:00.0", {10: "0000:3b:01.4", 2: "0000:3b:00.4", 0: "0000:3b:00.2"})
    assert NodeVfs(str(tmp_path)).virtual("ib0") == [
        Vf("0000:3b:00.2", "ib0", 0),
        Vf("0000:3b:00.4", "ib0", 2),
        Vf("0000:3b:01.4", "ib0", 10),
    ]


def test_an_interface_is_found_under_the_name_that_it_came_back_with(tmp_path: Path) -> None:
    physical(tmp_path, "ib0", "0000:3b:00.0", {0: "0000:3b:00.2", 1: "0000:3b:00.3"})
    (tmp_path / "bus/pci/devices/0000:3b:00.2/net/dev10").mkdir()
    vfs = NodeVfs(str(tmp_path))
    first, second = vfs.virtual("ib0")
    assert vfs.interface(first) == "dev10"
    assert vfs.interface(second) == "", "it is in a container"


def test_a_vf_without_a_driver_is_idle_and_one_in_a_container_is_not(tmp_path: Path) -> None:
    physical(tmp_path, "ib0", "0000:3b:00.0", {0: "0000:3b:00.2", 1: "0000:3b:00.3"})
    (tmp_path / "bus/pci/devices/0000:3b:00.3/driver").symlink_to(tmp_path)
    vfs = NodeVfs(str(tmp_path))
    assert [vfs.is_idle(one) for one in vfs.virtual("ib0")] == [True, False]
    assert not vfs.is_idle(Vf("veth1", "veth1", -1)), "what is no PCI device has none"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ib7", "there is no network interface ib7"),
        ("eth0", "not the interface of a physical function"),
        ("bond0", "not the interface of a physical function"),
        ("ib0", "8 at most"),
    ],
)
def test_missing_vfs_are_reported_with_the_reason(tmp_path: Path, name: str, words: str) -> None:
    physical(tmp_path, "ib0", "0000:3b:00.0", {})
    interface(tmp_path, "eth0", "0000:01:00.0")
    interface(tmp_path, "bond0", "")
    with pytest.raises(VfProblem, match=words):
        NodeVfs(str(tmp_path)).virtual(name)


def test_whole_interface_is_known_by_its_pci_address(tmp_path: Path) -> None:
    interface(tmp_path, "ib1", "0000:5e:00.0")
    interface(tmp_path, "bond0", "")
    vfs = NodeVfs(str(tmp_path))
    assert vfs.whole("ib1") == Vf("0000:5e:00.0", "ib1", -1)
    assert vfs.whole("bond0") == Vf("bond0", "bond0", -1)
    assert vfs.interface(vfs.whole("bond0")) == "bond0"
    with pytest.raises(VfProblem, match="ib9"):
        vfs.whole("ib9")


def test_infiniband_is_no_ethernet(tmp_path: Path) -> None:
    interface(tmp_path, "ib0", "0000:3b:00.0", kind=32)
    interface(tmp_path, "eth0", "0000:01:00.0", kind=1)
    vfs = NodeVfs(str(tmp_path))
    assert [vfs.is_ethernet(name) for name in ("ib0", "eth0", "none")] == [False, True, False]


def test_the_commands_kernel_words_become_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(VfProblem, match="no-such-link"):
        NodeVfs(str(tmp_path)).up("no-such-link")


class Card(NodeVfs):
    """A card whose commands are recorded, and which shows what they set."""

    def __init__(self, root: Path, shown: str) -> None:
        super().__init__(str(root))
        self.shown = shown
        self.commands: list[str] = []

    def _ip(self, words: Sequence[str]) -> str:  # type: ignore[override]
        self.commands.append(" ".join(words))
        if "-j" in words and not self.shown:
            raise VfProblem("ip -j: not supported")
        return self.shown if "-j" in words else ""


WITHOUT_RIGHTS = "vlan 0 trust off spoofchk on"


@pytest.mark.parametrize(
    ("shown", "sets_mac"),
    [
        ([{"vf": 0, "address": "02:00:00:00:00:09"}, {"vf": 1, "address": "00:00:00:00:00:00"}], True),
        ([{"vf": 0, "mac": "02:00:00:00:00:09"}, {"vf": 1, "mac": "00:00:00:00:00:00"}], True),
        ([{"vf": 0, "address": "00:00:00:00:00:00"}, {"vf": 1, "address": "02:00:00:00:00:03"}], False),
        ([{"vf": 1}], False),
        ([], False),
    ],
)
def test_a_card_that_knows_no_address_of_a_vf_learns_it_before_it_checks_senders(
    tmp_path: Path, shown: list[dict[str, Any]], sets_mac: bool
) -> None:
    physical(tmp_path, "eth0", "0000:3b:00.0", {1: "0000:3b:00.3"})
    interface(tmp_path, "eth0v1", "0000:3b:00.3")
    card = Card(tmp_path, json.dumps([{"ifname": "eth0", "vfinfo_list": shown}]))
    vf = Vf("0000:3b:00.3", "eth0", 1)
    card.isolate(vf, 0, trusted=False)
    # The kernel takes the address first of one command's settings (do_setvfinfo).
    mac = "mac 02:00:00:00:00:03 " if sets_mac else ""
    assert card.commands[1:] == [f"link set dev eth0 vf 1 {mac}{WITHOUT_RIGHTS}"]
    card.commands.clear()
    card.isolate(vf, 7, trusted=True)
    assert card.commands == ["link set dev eth0 vf 1 vlan 7 trust on spoofchk off"]


def test_a_command_that_shows_no_vfs_changes_nothing(tmp_path: Path) -> None:
    physical(tmp_path, "eth0", "0000:3b:00.0", {1: "0000:3b:00.3"})
    for shown in ("", "[null]", "nonsense", "{}"):
        card = Card(tmp_path, shown)
        card.isolate(Vf("0000:3b:00.3", "eth0", 1), 0, trusted=False)
        assert card.commands[1:] == [f"link set dev eth0 vf 1 {WITHOUT_RIGHTS}"]


class Refusing(Card):
    """A card that does not support some settings."""

    def __init__(self, root: Path, *unknown: str) -> None:
        super().__init__(root, "")
        self.unknown = unknown

    def _ip(self, words: Sequence[str]) -> str:  # type: ignore[override]
        shown = super()._ip(words)
        if set(self.unknown) & set(words):
            raise VfProblem("ip: RTNETLINK answers: Operation not supported")
        return shown


def test_a_card_that_knows_no_vlans_is_good_for_a_network_without_one(tmp_path: Path) -> None:
    physical(tmp_path, "eth0", "0000:3b:00.0", {1: "0000:3b:00.3"})
    vf = Vf("0000:3b:00.3", "eth0", 1)
    card = Refusing(tmp_path, "vlan", "trust")
    card.isolate(vf, 0, trusted=False)
    known = ("vlan 0", "trust off", "spoofchk on")
    assert card.commands[-3:] == [f"link set dev eth0 vf 1 {one}" for one in known]
    with pytest.raises(VfProblem, match="not supported"):
        card.isolate(vf, 100, trusted=False)
