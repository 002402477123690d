"""From any state of a card to the desired one, on a kernel that behaves like Linux."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.sriov import observed_vfs
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import (
    DesiredPf,
    next_steps,
    problems,
)
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import addresses, guid_of
from ansible_collections.rdm.provision.plugins.module_utils.sriov.kernel import bring, evaluate
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import (
    facts,
    from_fact,
    to_fact,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.plugins.module_utils.sriov.fake_kernel import FakeKernel

FIRST = "06:5e:91:06:40:00"
INFINIBAND = ("ib0", "ib1")
ETHERNET = ("eth1", "eth2", "eth3")


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


def wanted(pf: str, number: int = 4, **more: Any) -> DesiredPf:
    policy = "Follow" if pf in INFINIBAND else ""
    return DesiredPf(pf, number, addresses(FIRST, 0, number), **{"policy": policy, **more})


def error_of(kernel: FakeKernel, *several: DesiredPf) -> str:
    """Return why it is refused, and check that nothing was changed."""
    before = list(kernel.log)
    with pytest.raises(NodeError) as refused:
        evaluate(kernel, several)
    assert kernel.log == before
    return str(refused.value)


# --- changes of a card ---


@pytest.mark.parametrize("pf", INFINIBAND)
def test_infiniband_vfs_get_policy_and_guids_and_are_bound_again(kernel: FakeKernel, pf: str) -> None:
    assert bring(kernel, wanted(pf)) is True
    found = kernel.read(pf)
    assert found.number == len(found.vfs) == 4
    for number, vf in enumerate(found.vfs):
        guid = guid_of(addresses(FIRST, 0, 4)[number])
        assert (vf.policy, vf.address, vf.port, vf.driver) == ("Follow", guid, guid, "mlx5_core")
        assert kernel.interface_address(pf, number) == guid  # which the driver has read


@pytest.mark.parametrize("pf", ETHERNET)
def test_ethernet_vfs_get_the_desired_settings(kernel: FakeKernel, pf: str) -> None:
    assert bring(kernel, wanted(pf, vlan=100, trust=True, spoof_check=False)) is True
    for number, vf in enumerate(kernel.read(pf).vfs):
        assert (vf.vlan, vf.trust, vf.spoof_check) == (100, True, False)
        assert vf.address == kernel.interface_address(pf, number) == addresses(FIRST, 0, 4)[number]


def test_settings_that_are_not_desired_stay(kernel: FakeKernel) -> None:
    kernel.make("0000:52:00.0", 2)
    kernel.ip(["link", "set", "dev", "eth2", "vf", "1", "vlan", "7"])
    kernel.log.clear()
    assert bring(kernel, DesiredPf("eth2", 2)) is False
    assert kernel.log == []


def test_number_of_vfs_is_set_to_0_before_another_number(kernel: FakeKernel) -> None:
    kernel.make("0000:41:00.0", 6)
    bring(kernel, wanted("ib0", 4))
    numbers = [line for line in kernel.log if "sriov_numvfs" in line]
    assert [line.rpartition(" ")[2] for line in numbers] == ["0", "4"]


def test_a_vf_is_unbound_before_and_bound_after_its_guids_are_set(kernel: FakeKernel) -> None:
    kernel.make("0000:41:00.0", 1)
    bring(kernel, wanted("ib0", 1))
    assert [line.split(" = ")[0].rpartition("/")[2] for line in kernel.log] == [
        "unbind",
        "node",
        "port",
        "policy",
        "drivers_probe",
    ]


def test_new_vfs_are_bound_once_when_they_have_their_guids(kernel: FakeKernel) -> None:
    bring(kernel, wanted("ib0", 2))
    assert [line.partition("/devices/")[2] or line for line in kernel.log if "/sriov/" not in line] == [
        "0000:41:00.0/sriov_drivers_autoprobe = 0",
        "0000:41:00.0/sriov_numvfs = 2",
        "0000:41:00.0/sriov_drivers_autoprobe = 1",
        "bus/pci/drivers_probe = 0000:41:00.1",
        "bus/pci/drivers_probe = 0000:41:00.2",
    ]


def test_a_kernel_without_a_switch_for_drivers_binds_them_twice(kernel: FakeKernel) -> None:
    (kernel.sys / "bus/pci/devices/0000:41:00.0/sriov_drivers_autoprobe").unlink()
    assert kernel.read("ib0").autoprobe is None
    bring(kernel, wanted("ib0", 2))
    assert len([line for line in kernel.log if line.endswith("/driver/unbind = 0000:41:00.1")]) == 1
    assert all(vf.driver for vf in kernel.read("ib0").vfs)


def test_vfs_left_without_a_driver_by_a_kill_are_repaired(kernel: FakeKernel) -> None:
    for step in next_steps(kernel.read("ib0"), wanted("ib0")):
        kernel.do(step)
    assert not any(vf.driver for vf in kernel.read("ib0").vfs)
    assert bring(kernel, wanted("ib0")) is True
    assert all(vf.interface for vf in kernel.read("ib0").vfs)
    assert kernel.read("ib0").autoprobe is True


def test_a_driver_that_comes_late_finds_every_address_set(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As udev loads it: the first bind waits for the driver, which then binds all at once."""
    probe = kernel.probe

    def late(pci: str) -> None:
        if "igbvf" in kernel.drivers:
            probe(pci)
        elif (kernel.sys / "bus/pci/devices/0000:52:00.0/sriov_drivers_autoprobe").read_text() == "1\n":
            kernel.drivers.add("igbvf")
            for vf in kernel.read("eth2").vfs:
                probe(vf.pci)

    kernel.drivers.discard("igbvf")
    monkeypatch.setattr(kernel, "probe", late)
    bring(kernel, wanted("eth2"))
    for number in range(4):
        assert kernel.interface_address("eth2", number) == addresses(FIRST, 0, 4)[number]


def test_a_driver_that_has_another_address_learns_its_own(kernel: FakeKernel) -> None:
    bring(kernel, wanted("eth2", 2))
    (net,) = (kernel.vf("eth2", 1) / "net").iterdir()
    (net / "address").write_text("02:00:00:00:00:01\n")
    assert bring(kernel, wanted("eth2", 2)) is True
    assert kernel.interface_address("eth2", 1) == addresses(FIRST, 0, 2)[1]


def test_a_policy_alone_needs_no_rebind(kernel: FakeKernel) -> None:
    bring(kernel, wanted("ib0"))
    kernel.log.clear()
    bring(kernel, wanted("ib0", policy="Up"))
    assert len(kernel.log) == 4
    assert all(line.endswith("policy = Up") for line in kernel.log)


def test_vfs_that_are_not_bound_automatically_are_bound(kernel: FakeKernel) -> None:
    kernel.write("bus/pci/devices/0000:41:00.0/sriov_drivers_autoprobe", "0")
    kernel.make("0000:41:00.0", 4)
    assert not any(vf.driver for vf in kernel.read("ib0").vfs)
    bring(kernel, wanted("ib0"))
    assert all(vf.driver and vf.interface for vf in kernel.read("ib0").vfs)


def test_a_pf_is_found_by_its_pci_address(kernel: FakeKernel) -> None:
    bring(kernel, wanted("0000:42:00.0", policy="Follow"))
    assert kernel.read("ib1").number == 4


def test_a_vf_that_was_unplugged_is_named_and_comes_back_with_its_card(kernel: FakeKernel) -> None:
    bring(kernel, wanted("ib0"))
    kernel.hold("ib0", 0)
    kernel.unplug("ib0", 2)
    # Nothing is tried: the kernel would remove all VFs and create none.
    message = error_of(kernel, wanted("ib0"))
    assert message == (
        "ib0 has lost VF 2, unplugged by itself, and the kernel makes none in its place while it knows the "
        "card: end what uses ib0 and its VFs, make the kernel find the card again (echo 1 > "
        "/sys/bus/pci/devices/0000:41:00.0/remove, then echo 1 > /sys/bus/pci/rescan) or restart the node, "
        "then run again"
    )
    # Preflight says the same, from facts; and so it stays with another number.
    assert problems(from_fact(to_fact(kernel.read("ib0"))), wanted("ib0")) == [message]
    assert error_of(kernel, wanted("ib0", 3)) == message
    kernel.make("0000:41:00.0", 0)
    assert error_of(kernel, wanted("ib0")) == message
    # Those below it can be made.
    assert bring(kernel, wanted("ib0", 2)) is True
    kernel.rediscover("ib0")
    assert bring(kernel, wanted("ib0")) is True
    assert kernel.read("ib0").whole
    assert [vf.address for vf in kernel.read("ib0").vfs] == [guid_of(one) for one in addresses(FIRST, 0, 4)]


def test_a_vf_that_lost_its_driver_is_bound_though_a_container_has_another(kernel: FakeKernel) -> None:
    bring(kernel, wanted("eth2"))
    kernel.hold("eth2", 0)
    kernel.unbind(kernel.vf("eth2", 2).name)
    kernel.log.clear()
    assert bring(kernel, wanted("eth2")) is True
    assert kernel.log == [f"bus/pci/drivers_probe = {kernel.vf('eth2', 2).name}"]
    assert kernel.interface_address("eth2", 2) == addresses(FIRST, 0, 4)[2]
    # But not if other changes are needed.
    kernel.unbind(kernel.vf("eth2", 2).name)
    assert "while a container has VF 0" in error_of(kernel, wanted("eth2", vlan=9))


def test_vfs_one_of_which_was_unplugged_can_be_taken_away(kernel: FakeKernel) -> None:
    bring(kernel, wanted("ib0"))
    kernel.unplug("ib0", 2)
    assert bring(kernel, DesiredPf("ib0", 0)) is True
    assert bring(kernel, DesiredPf("ib0", 0)) is False


USES = {
    "address": "has the address 10.1.0.5/24",
    "bridge": "is a port of br0",
    "vlan": "has {}.7 on top of it",
}


@pytest.mark.parametrize("how", USES)
@pytest.mark.parametrize("pf", ["ib0", "eth2"])
def test_vfs_that_the_node_itself_uses_stay(kernel: FakeKernel, pf: str, how: str) -> None:
    bring(kernel, wanted(pf, 2))
    interface = kernel.use(pf, 1, how)
    pci = kernel.vf(pf, 1).name
    messages = (
        f"{pf} cannot be changed (it has 2 VFs, not 4) while the node itself uses VF 1 of {pf} "
        f"({pci}), whose interface {interface} {USES[how].format(interface)}: take it out of use on the "
        "node, then run again"
    )
    assert error_of(kernel, wanted(pf, 4)) == messages
    # Preflight says the same, from facts.
    fact = to_fact(kernel.read(pf))
    assert problems(from_fact(fact), wanted(pf, 4)) == [messages]
    # What needs no new number goes on, but for the driver of that one.
    settings = {"policy": "Up"} if pf == "ib0" else {"vlan": 9}
    assert bring(kernel, wanted(pf, 2, **settings)) is True
    other = wanted(pf, 2)._replace(addresses=addresses("06:5e:91:06:50:00", 0, 2))
    assert f"interface {interface}" in error_of(kernel, other)


def test_an_address_counts_unless_ipv6_made_it_on_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"family": "inet6", "local": "fe80::1", "prefixlen": 64, "scope": "link"}
    shown = [
        {"ifname": "v0", "addr_info": [own]},
        {"ifname": "v1", "addr_info": [{"family": "inet", "local": "10.1.0.5", "prefixlen": 24}]},
        {"ifname": "v2", "addr_info": []},
    ]
    monkeypatch.setattr(observed_vfs, "ip_json", lambda *_words: shown)
    assert observed_vfs.host_addresses() == {"v1": "10.1.0.5/24"}


CHANGES = st.lists(
    st.tuples(st.sampled_from(["hold", "give_away", "unbind", "unplug", "change"]), st.integers(0, 6)),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([*INFINIBAND, *ETHERNET]),
    st.integers(0, 7),
    st.integers(1, 7),
    st.booleans(),
    st.booleans(),
    CHANGES,
)
def test_any_state_reaches_the_desired_one_or_stays(
    pf: str, before: int, number: int, configured: bool, autoprobe: bool, changes: list[tuple[str, int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        kernel = FakeKernel(Path(directory))
        goal = wanted(pf, number)
        if before and configured:
            bring(kernel, wanted(pf, before))
        else:
            kernel.write(
                f"bus/pci/devices/{kernel.pci(pf)}/sriov_drivers_autoprobe", "1" if autoprobe else "0"
            )
            kernel.make(kernel.pci(pf), before)
        for what, vf in changes:
            _happen(kernel, pf, what, vf)
        found = kernel.read(pf)
        if any(not vf.pci and vf.number < number for vf in found.vfs):
            assert "unplugged by itself" in error_of(kernel, goal)
            kernel.rediscover(pf)
            found = kernel.read(pf)
        held = any(vf.holder for vf in found.vfs)
        work = bool(next_steps(found, goal))
        binds = all(step.path.endswith("/drivers_probe") for step in next_steps(found, goal))
        kernel.log.clear()
        if held and work and not binds:
            assert "cannot be changed" in error_of(kernel, goal)
            return
        assert bring(kernel, goal) is work
        assert held is False or binds
        after = kernel.read(pf)
        assert after.number == number
        assert after.whole
        if work:
            assert all(vf.driver and (vf.interface or vf.holder) for vf in after.there)
        kernel.log.clear()
        assert bring(kernel, goal) is False  # a second run
        assert kernel.log == []


def _happen(kernel: FakeKernel, pf: str, what: str, number: int) -> None:
    vfs = {vf.number: vf for vf in kernel.read(pf).vfs if vf.pci}
    if number not in vfs or (what != "unplug" and not vfs[number].interface):
        return
    if what == "hold":
        kernel.hold(pf, number)
    elif what == "give_away":
        kernel.give_away(pf, number)
    elif what == "unbind":
        kernel.unbind(vfs[number].pci)
    elif what == "unplug":
        kernel.unplug(pf, number)
    elif pf in ETHERNET:
        kernel.ip(["link", "set", "dev", pf, "vf", str(number), "mac", "02:00:00:00:00:01"])
    elif pf == "ib1":
        kernel.ip(["link", "set", "dev", pf, "vf", str(number), "state", "disable"])
    else:
        kernel.write(f"bus/pci/devices/0000:41:00.0/sriov/{number}/node", "00:00:00:00:00:00:00:01")


# --- what is refused ---


@pytest.mark.parametrize(
    ("pf", "number", "message"),
    [
        (
            "ib0",
            17,
            "ib0 can have 16 VFs, and 17 are wanted: set sriov_vfs to 16 at most, or allow more (mlxconfig "
            "-d 0000:41:00.0 set SRIOV_EN=1 NUM_OF_VFS=17, then restart the node)",
        ),
        ("eth2", 8, "eth2 can have 7 VFs, and 8 are wanted: set sriov_vfs to 7 at most"),
        ("ib2", 4, "ib2 has the driver mlx4_core (ConnectX-3), which makes its VFs when it is loaded"),
        ("eth4", 4, "eth4 is in the bond bond0"),
        ("eth5", 4, "eth5 (driver tg3) has no SR-IOV: the kernel lacks CONFIG_PCI_IOV"),
        ("eth6", 4, "eth6 (driver mlx5_core) has no SR-IOV: "),
        ("ib0.8001", 4, "ib0.8001 is a partition's interface on a physical function: name that one"),
        ("bond0", 4, "bond0 is no interface of a PCI device"),
        ("ib7", 4, "there is no network interface ib7 on this node: see that its driver is loaded"),
        ("0000:99:00.0", 4, "there is no PCI device 0000:99:00.0 on this node"),
        ("../../etc", 4, "there is no network interface ../../etc"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    kernel: FakeKernel, pf: str, number: int, message: str
) -> None:
    text = error_of(kernel, DesiredPf(pf, number))
    assert text.startswith(message)
    assert ". " not in text


def test_a_held_vf_is_named(kernel: FakeKernel) -> None:
    bring(kernel, wanted("ib0"))
    kernel.hold("ib0", 2)
    assert error_of(kernel, wanted("ib0", 8)) == (
        "ib0 cannot be changed (it has 4 VFs, not 8) while a container has VF 2 of ib0 (0000:41:00.3): "
        "end what uses it, then run again"
    )
    kernel.give_away("ib0", 0)
    assert "vfio-pci has VF 0 of ib0 (0000:41:00.1) and a container has VF 2" in error_of(
        kernel, wanted("ib0", policy="Up")
    )


def test_held_vf_does_not_block_correct_settings(kernel: FakeKernel) -> None:
    bring(kernel, wanted("ib0"))
    kernel.hold("ib0", 2)
    kernel.log.clear()
    assert bring(kernel, wanted("ib0")) is False
    assert kernel.log == []


def test_one_bad_pf_leaves_the_others_unchanged(kernel: FakeKernel) -> None:
    text = error_of(kernel, wanted("ib0"), wanted("ib2"), wanted("eth4"))
    assert "mlx4_core" in text
    assert "bond0" in text
    assert kernel.read("ib0").number == 0


def test_one_pf_under_two_names_is_refused(kernel: FakeKernel) -> None:
    assert "ib0 and 0000:41:00.0 are one function" in error_of(kernel, wanted("ib0"), wanted("0000:41:00.0"))


def test_infiniband_settings_are_refused_on_ethernet_and_the_other_way(kernel: FakeKernel) -> None:
    assert "ib0 is InfiniBand, whose VFs have no VLAN or trust" in error_of(
        kernel, wanted("ib0", vlan=1, trust=False)
    )
    guid = DesiredPf("eth1", 1, ["06:5e:91:ff:fe:06:40:00"])
    assert "eth1 is Ethernet, and 06:5e:91:ff:fe:06:40:00 is a GUID" in error_of(kernel, guid)


def test_a_driver_that_shows_neither_policy_nor_guids_is_refused(kernel: FakeKernel) -> None:
    kernel.make("0000:42:00.0", 4)
    kernel.ip_works = False
    assert "neither sysfs nor ip link shows policy and GUIDs of the VFs of ib1" in error_of(
        kernel, wanted("ib1")
    )


def test_too_few_addresses_are_refused(kernel: FakeKernel) -> None:
    assert "ib0 is to have 2 VFs, and there are addresses for 1" in error_of(
        kernel, DesiredPf("ib0", 2, addresses(FIRST, 0, 1))
    )


# --- failures during a change ---


def test_a_setting_without_effect_is_reported(kernel: FakeKernel) -> None:
    kernel.ignores.add("policy")
    with pytest.raises(NodeError, match=r"^the kernel let one .*policy of VF 3 of ib0.*shows no effect$"):
        bring(kernel, wanted("ib0"))


def test_a_vf_that_no_driver_takes_is_reported_and_the_next_run_repairs_it(kernel: FakeKernel) -> None:
    kernel.drivers.discard("igbvf")
    with pytest.raises(NodeError, match=r"^cannot bind VF 0 of eth2 .*: no driver took it: load .*igbvf"):
        bring(kernel, wanted("eth2"))
    kernel.drivers.add("igbvf")
    assert bring(kernel, wanted("eth2")) is True


def test_a_vf_that_vanishes_meanwhile_is_reported(kernel: FakeKernel) -> None:
    kernel.make("0000:41:00.0", 1)
    steps = next_steps(kernel.read("ib0"), wanted("ib0", 1))
    kernel.unplug("ib0", 0)
    with pytest.raises(NodeError, match=r"^cannot unbind VF 0 of ib0 \(0000:41:00.1\): .*it has vanished"):
        kernel.do(steps[0])


def test_a_card_that_has_sriov_off_is_named(kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pf: str, number: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(kernel, "make", refuse)
    with pytest.raises(NodeError, match=r"^cannot give ib0 4 VFs: Input/output error \(SR-IOV is off in"):
        bring(kernel, wanted("ib0"))


# --- facts ---


def test_pf_facts_survive_serialisation(kernel: FakeKernel) -> None:
    bring(kernel, wanted("ib0"))
    kernel.hold("ib0", 1)
    listed = {one["pf"]: one for one in facts(kernel.root)}
    assert list(listed) == ["eth1", "eth2", "eth3", "eth4", "ib0", "ib1", "ib2"]
    assert from_fact(listed["ib0"]) == kernel.read("ib0")
    assert to_fact(from_fact(listed["eth4"])) == listed["eth4"]
    assert listed["eth4"]["bond"] == "bond0"
    assert [vf["netdev"] == "" for vf in listed["ib0"]["vfs"]] == [False, True, False, False]
