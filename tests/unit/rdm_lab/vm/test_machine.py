"""The specification of a node that is a virtual machine."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.rdm_lab import spec
from ansible_collections.rdm.provision.rdm_lab.vm import machine
from hypothesis import given
from hypothesis import strategies as st

LABS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", fullmatch=True)
NODES = st.integers(1, spec.MAX_NODES).map(lambda number: f"n{number}")


def node(**changes: Any) -> machine.MachineSpec:
    values: dict[str, Any] = {
        "lab": "lab",
        "name": "n1",
        "image": "rdm-lab/machine:1",
        "address": "10.20.0.11",
        "network": "rdm-lab-lab",
        "directory": "/home/me/inventory/lab",
        "archives": "/home/me/.cache/x",
        "machine": "/home/me/.cache/machine-1",
        "kvm": True,
    }
    return machine.MachineSpec(**{**values, **changes})


def container_body() -> dict[str, Any]:
    """Return the specification of the same node as a container."""
    common = {name: getattr(node(), name) for name in ("lab", "name", "image", "address", "network")}
    return spec.node_body(
        spec.NodeSpec(
            **common,
            directory="/d",
            archives="/a",
            capabilities=spec.Capabilities((), False),
            cgroup_version="2",
        )
    )


def option(argv: list[str], name: str, begin: str = "") -> str:
    """Return the value of an option; of several values, the one with this prefix."""
    values = [value for key, value in pairwise(argv) if key == name]
    return next(value for value in values if value.startswith(begin))


def test_ssh_reaches_the_machine_at_the_address_of_its_node() -> None:
    assert option(machine.qemu_command(node()), "-netdev", "user").endswith(",hostfwd=tcp:10.20.0.11:22-:22")


def test_the_card_is_plugged_into_a_port_of_its_own_as_virtual_functions_need() -> None:
    argv = machine.qemu_command(node())
    assert option(argv, "-device", "pcie-root-port") == "pcie-root-port,id=port0,chassis=1,addr=1"
    assert ",bus=port0," in option(argv, "-device", "igb")


def test_each_rail_is_a_card_on_the_bus_that_the_guest_names_it_by() -> None:
    assert "Env" not in machine.machine_body(node())
    body = machine.machine_body(node(rails=spec.MAX_RAILS))
    assert body["Env"] == [f"RDM_LAB_RAILS={spec.MAX_RAILS}"]
    argv = machine.qemu_command(node(rails=spec.MAX_RAILS))
    devices = [value for key, value in pairwise(argv) if key == "-device"]
    ports = [value for value in devices if value.startswith("pcie-root-port,")]
    assert [value.rpartition("addr=")[2] for value in ports] == [f"{slot:x}" for slot in range(1, 9)]
    # Devices that come first get the slots that they request.
    assert devices.index(ports[-1]) < min(devices.index(one) for one in devices if one.startswith("virtio"))
    cards = [value for value in devices if value.startswith("igb,")]
    assert [value.split(",")[1:3] for value in cards] == [
        [f"netdev=fabric{rail}", f"bus=port{rail}"] for rail in range(spec.MAX_RAILS)
    ]
    assert len({value.rpartition("mac=")[2] for value in cards}) == spec.MAX_RAILS
    named = (Path(__file__).parents[4] / "roles/lab/files/vm/guest.sh").read_text()
    assert f"for rail in {' '.join(map(str, range(spec.MAX_RAILS)))}; do" in named


def test_accelerator_is_chosen_where_the_machine_starts() -> None:
    assert "-accel" not in machine.qemu_command(node())


def test_the_machine_sees_the_directories_that_a_container_sees_and_cannot_write_to_them() -> None:
    argv = machine.qemu_command(node())
    shared = [value for value in argv if value.startswith("local,")]
    assert [f"path={spec.IMAGES_AT},", f"path={spec.KEYS_AT},"] == [
        value[value.index("path=") : value.index("security")] for value in shared
    ]
    assert all(value.endswith("readonly=on") for value in shared)
    binds = machine.machine_body(node())["HostConfig"]["Binds"]
    assert [bind.rsplit(":", 1)[-1] for bind in binds[1:]] == ["ro"] * 3


@given(LABS, NODES, LABS, NODES)
def test_no_two_nodes_have_the_same_card_or_identity(lab: str, one: str, other: str, two: str) -> None:
    same = (lab, one) == (other, two)
    assert (machine.machine_id(lab, one) == machine.machine_id(other, two)) == same
    if lab == other:  # labs share no switch
        assert (machine.mac_address(lab, one) == machine.mac_address(other, two)) == same


@given(LABS, NODES)
def test_a_card_has_an_address_that_no_vendor_has_given(lab: str, name: str) -> None:
    first = int(machine.mac_address(lab, name).split(":")[0], 16)
    assert first & 0b11 == 0b10  # of one card, and locally administered


def test_no_card_of_a_whole_lab_has_the_address_of_another_one() -> None:
    names = spec.node_names(spec.MAX_NODES)
    assert len({machine.mac_address("lab", name) for name in names}) == len(names)


def test_a_machine_has_few_rights_on_the_machine_below() -> None:
    host = machine.machine_body(node())["HostConfig"]
    assert "Privileged" not in host
    assert host["CapAdd"] == ["NET_ADMIN"]
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/net/tun", "/dev/kvm"]
    without = machine.machine_body(node(kvm=False))["HostConfig"]
    assert [device["PathOnHost"] for device in without["Devices"]] == ["/dev/net/tun"]


def test_machine_has_the_cpu_weight_of_a_process() -> None:
    assert machine.machine_body(node(cgroup_driver="cgroupfs"))["HostConfig"]["CgroupParent"] == "/"
    assert "CgroupParent" not in machine.machine_body(node(cgroup_driver="systemd"))["HostConfig"]


def test_the_container_is_a_node_of_the_lab_and_known_as_a_machine() -> None:
    body = machine.machine_body(node())
    assert body["Labels"][spec.LABEL] == "lab"
    assert body["Labels"][spec.NODE_LABEL] == "n1"
    assert machine.is_machine(body)
    assert not machine.is_machine(container_body())
    assert not machine.is_machine(None)


def test_a_node_is_recreated_when_its_kind_or_its_disk_has_changed() -> None:
    body = machine.machine_body(node())
    assert spec.stale({"Labels": body["Labels"]}, container_body())
    assert spec.stale({"Labels": body["Labels"]}, machine.machine_body(node(machine="/other")))
    assert not spec.stale({"Labels": body["Labels"]}, machine.machine_body(node()))


@pytest.mark.parametrize(
    ("driver", "trainer", "source", "words"),
    [
        ("macvlan", False, "auto", "--driver macvlan with --hardware container"),
        ("sriov", True, "auto", "--trainer goes with --hardware container"),
        ("sriov", False, "registry", "--image-source registry goes with --hardware container"),
    ],
)
def test_impossible_labs_of_machines_are_refused(driver: str, trainer: bool, source: str, words: str) -> None:
    with pytest.raises(spec.LabProblem, match=words):
        machine.checked_request(driver, trainer, source)


def test_possible_labs_of_machines_are_accepted() -> None:
    machine.checked_request("sriov", False, "auto")


@given(st.integers(0, 100), st.integers(0, 300_000))
def test_machines_are_refused_exactly_when_they_leave_too_little(new: int, available: int) -> None:
    fits = new * machine.MEMORY_NEEDED_MIB + machine.MEMORY_KEPT_MIB <= available
    if fits or not new:
        machine.checked_memory(new, available)
    else:
        with pytest.raises(spec.LabProblem, match=f"{new} more virtual machines need"):
            machine.checked_memory(new, available)


def test_the_error_says_how_many_fit() -> None:
    with pytest.raises(spec.LabProblem, match=r"need 5632 MiB of memory, and 4200 MiB are free: 2 fit"):
        machine.checked_memory(3, 4200)
    with pytest.raises(spec.LabProblem, match="none fits"):
        machine.checked_memory(1, 900)


def test_the_memory_that_is_free() -> None:
    assert machine.available_memory("MemTotal: 9 kB\nMemAvailable:   2097152 kB\n") == 2048
    assert machine.available_memory("") == 0
