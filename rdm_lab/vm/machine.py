# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab node that is a virtual machine: its command line, container and memory. Pure decisions.

The machine runs in a container of its own with the node's name, address and port on the switch, like a node
that is a container itself. So all labs are made, inspected, broken and removed in one way: no process runs
outside the engine, and every object has the lab's label.

In the container, QEMU forwards ssh, and a bridge connects the machine's network card with ib0; with more
rails, another connects the next card with ib1, and so on. A card is an emulated Intel 82576, whose virtual
functions are real to the machine's kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.rdm.provision.rdm_lab import spec
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.vm.recipe import INITRD, KERNEL

MACHINE_AT = "/srv/rdm/machine"  # in the container
STATE_AT = "/var/lib/machine"
DRIVER = "sriov"  # of the container network

MEMORY_MIB = 1024
# With QEMU's own memory; measured as up to 1.3 GiB resident.
MEMORY_NEEDED_MIB = 1536
MEMORY_KEPT_MIB = 1024
CAPABILITIES = ("NET_ADMIN",)
TUN = "/dev/net/tun"
KVM = "/dev/kvm"
BOOT_TIMEOUT_S = 900.0  # without KVM, a boot takes a minute of one core, and machines share few cores


@dataclass(frozen=True, kw_only=True)
class MachineSpec(spec.Node):
    """A node that is a virtual machine.

    Attributes:
        machine: the directory of disk, kernel and initrd.
        kvm: this machine has /dev/kvm, which may not work.
        rails: the number of its cards, each on a switch of its own.
    """

    machine: str
    kvm: bool
    rails: int = 1


def checked_request(driver: str, trainer: bool, source: str = "packages") -> None:
    """Refuse settings that labs of virtual machines do not have.

    Args:
        driver: of the container network.
        trainer: the training image is wanted.
        source: where images come from.

    Raises:
        LabProblem: one of them does not go with virtual machines.
    """
    if driver != DRIVER:
        raise LabProblem(
            f"nodes that are virtual machines are there for their virtual functions: --hardware vm goes with "
            f"--driver {DRIVER}, and --driver {driver} with --hardware container"
        )
    if trainer:
        raise LabProblem(
            f"the training image is too large for virtual machines of {MEMORY_MIB} MiB: "
            "--trainer goes with --hardware container"
        )
    if source == "registry":
        raise LabProblem(
            "virtual machines are made from packages: --image-source registry goes with --hardware container"
        )


def checked_memory(new: int, available_mib: int) -> None:
    """Refuse more machines than the memory holds.

    Raises:
        LabProblem: they do not fit.
    """
    fit = max(0, available_mib - MEMORY_KEPT_MIB) // MEMORY_NEEDED_MIB
    if new > fit:
        raise LabProblem(
            f"{new} more virtual machines need {new * MEMORY_NEEDED_MIB + MEMORY_KEPT_MIB} MiB of memory, "
            f"and {available_mib} MiB are free: "
            + (f"{fit} fit" if fit else "none fits; --hardware container needs a tenth")
        )


def available_memory(meminfo: str) -> int:
    """Return the available memory, in MiB; `meminfo` is the text of /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return 0


def mac_address(lab: str, node: str, rail: int = 0) -> str:
    """Return the hardware address of a node's physical function, the same whenever the node is made."""
    digest = hashlib.sha256("\0".join((lab, node, *([str(rail)] if rail else []))).encode()).digest()
    # Locally administered; the last byte leaves room for addresses that a driver derives by counting up.
    return ":".join(f"{byte:02x}" for byte in (0x52, *digest[:4], digest[4] & 0xF0))


def machine_id(lab: str, node: str) -> str:
    """Return the machine-id of a node."""
    return hashlib.sha256(f"machine\0{lab}\0{node}".encode()).hexdigest()[:32]


def kernel_command_line(lab: str, node: str) -> str:
    """Return the command line of a machine's kernel."""
    return " ".join(
        (
            "root=/dev/vda",
            "console=ttyS0",
            "quiet",
            "net.ifnames=0",
            "mitigations=off",  # nobody attacks it, and without KVM they cost twice as much
            # While it waits for a core, the TSC looks unreliable; other clocks cost 20 us per read.
            "tsc=reliable",
            "cryptomgr.notests",
            "panic=10",
            f"systemd.hostname={node}",
            f"systemd.machine_id={machine_id(lab, node)}",
        )
    )


def qemu_command(machine: MachineSpec) -> list[str]:
    """Return the command line of QEMU, to which the container's program adds the accelerator."""
    shares = {"images": spec.IMAGES_AT, "keys": spec.KEYS_AT}
    shared: list[str] = []
    for name, path in shares.items():
        shared += [
            "-fsdev",
            f"local,id={name},path={path},security_model=none,readonly=on",
            "-device",
            f"virtio-9p-pci,fsdev={name},mount_tag=rdm-{name}",
        ]
    cards: list[str] = []
    for rail in range(machine.rails):
        mac = mac_address(machine.lab, machine.name, rail)
        cards += [
            *("-netdev", f"tap,id=fabric{rail},ifname=tap{rail},script=no,downscript=no"),
            # In the first slots, so that the cards' buses are 1, 2..., by which guest.sh names them.
            *("-device", f"pcie-root-port,id=port{rail},chassis={rail + 1},addr={rail + 1:x}"),
            *("-device", f"igb,netdev=fabric{rail},bus=port{rail},romfile=,mac={mac}"),
        ]
    return [
        "qemu-system-x86_64",
        *("-name", machine.name),
        *("-machine", "q35"),
        *("-cpu", "max"),
        *("-smp", "1"),
        *("-m", str(MEMORY_MIB)),
        "-nodefaults",
        "-no-user-config",
        *("-display", "none"),
        *("-serial", "stdio"),
        *("-kernel", f"{MACHINE_AT}/{KERNEL}"),
        *("-initrd", f"{MACHINE_AT}/{INITRD}"),
        *("-append", kernel_command_line(machine.lab, machine.name)),
        # Flushes reach the disk, since a node's power may be cut at any moment.
        *cards,
        *("-drive", f"file={STATE_AT}/disk.qcow2,format=qcow2,if=none,id=disk,cache=writeback"),
        *("-device", "virtio-blk-pci,drive=disk"),
        *("-netdev", f"user,id=management,hostfwd=tcp:{machine.address}:22-:22"),
        *("-device", "virtio-net-pci,netdev=management,romfile="),
        *shared,
        *("-device", "virtio-serial-pci"),
        *("-chardev", "socket,id=report,path=/run/machine/report,server=on,wait=off"),
        *("-device", "virtserialport,chardev=report,name=rdm.lab"),
        *("-device", "virtio-rng-pci"),
        *("-monitor", "unix:/run/machine/monitor,server=on,wait=off"),
    ]


def machine_body(machine: MachineSpec) -> dict[str, Any]:
    """Return the specification of the container that a machine runs in."""
    devices = [TUN, *([KVM] if machine.kvm else [])]
    host = {
        "CapAdd": list(CAPABILITIES),
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in devices
        ],
        "Tmpfs": {"/run": "mode=755"},
    }
    command = ["rdm-lab", "init", *qemu_command(machine)]
    disk = f"{machine.machine}:{MACHINE_AT}:ro"
    body = spec.container_body(machine, command, STATE_AT, host, disk, hardware="vm")
    return spec.stamped({**spec.rails_environment(machine.rails), **body})


def is_machine(container: Mapping[str, Any] | None) -> bool:
    """Whether a node's container, as the engine lists it, runs a virtual machine."""
    labels = (container or {}).get("Labels") or {}
    return bool(labels.get(f"{spec.LABEL}.hardware") == "vm")
