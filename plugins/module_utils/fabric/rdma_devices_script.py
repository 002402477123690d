# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds, inside one container, the RDMA devices that it can use, and the device of its fabric address.

`rdm.provision.rdma_probe` runs the text of this file in the training container with `python3 -c`. So it uses
only the standard library of Python 3.7 or newer, and no other file of ours.

Its arguments are the address, the root of /sys and /dev, and the number of rails. It prints one JSON object:

    {"problem": "" or one sentence, "device": "mlx5_2", "ib_port": 1, "gid_index": 3, "rate_gbit": 200.0,
     "link_layer": "InfiniBand", "usable": {"/dev/infiniband/uverbs2": "mlx5_2", …}, "foreign": ["mlx5_5"]}

`usable` maps the character devices that can be opened to their RDMA devices (empty for rdma_cm). `foreign`
are usable RDMA devices whose network interface is in another namespace.

If RDMA's network namespaces are shared, sysfs shows all RDMA devices of the node to every container. Usable
are only those that can be opened in /dev/infiniband. The device of an address is the one that has it in its
GID table (RoCE, soft RoCE), or is the parent of its interface, or whose GUID ends the hardware address of the
IPoIB interface. With one rail and one device it is that device.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import struct
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

SIOCGIFADDR = 0x8915
PROGRAMS = ("ib_write_bw", "ib_write_lat")
CLASSES = (("infiniband_verbs", "uverbs"), ("infiniband_mad", "umad"), ("infiniband_mad", "issm"))
DEVICES = "dev/infiniband"


class Port(NamedTuple):
    """The port of an RDMA device that has an address."""

    device: str
    number: int
    gid_index: Optional[int]


def entries(*parts: str) -> List[str]:
    """Return the names in a directory; none if it does not exist."""
    try:
        return sorted(os.listdir(os.path.join(*parts)))
    except OSError:
        return []


def read(*parts: str) -> str:
    """Return the text of a sysfs file; empty if it cannot be read."""
    try:
        with open(os.path.join(*parts)) as file:
            return file.read().strip()
    except (OSError, ValueError):  # the kernel refuses to read unused GIDs
        return ""


def usable(root: str) -> Dict[str, str]:
    """Return the character devices that can be opened, each with its RDMA device."""
    found = {}
    for name in entries(root, DEVICES):
        owner = next(
            (
                read(root, "sys/class", directory, name, "ibdev")
                for directory, kind in CLASSES
                if name.startswith(kind)
            ),
            "",
        )
        try:
            os.close(os.open(os.path.join(root, DEVICES, name), os.O_RDWR | os.O_CLOEXEC))
        except OSError:
            continue
        found["/" + DEVICES + "/" + name] = owner
    return found


def interface_of(address: str) -> str:
    """Return the name of the interface with an address; empty if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _index, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                if socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24]) == address:
                    return name
            except OSError:  # it has no IPv4 address
                continue
    return ""


def gid_of(address: str) -> str:
    """Return an IPv4 address as a GID, in the kernel's notation."""
    return "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*socket.inet_aton(address))


def candidates(address: str, interface: str, devices: List[str], root: str, alone: bool) -> Iterator[Port]:
    """Yield the ports that may have an address, the most certain first."""
    gid = gid_of(address)
    for wanted in ("RoCE v2", ""):
        for device in devices:
            for number in entries(root, "sys/class/infiniband", device, "ports"):
                port = os.path.join(root, "sys/class/infiniband", device, "ports", number)
                for index in sorted(entries(port, "gids"), key=int):
                    kind = read(port, "gid_attrs/types", index)
                    if read(port, "gids", index) == gid and wanted in kind:
                        yield Port(device, int(number), int(index))
    below = entries(root, "sys/class/net", interface, "device/infiniband") if interface else []
    hardware = read(root, "sys/class/net", interface, "address").replace(":", "") if interface else ""
    for device in devices:
        for number in entries(root, "sys/class/infiniband", device, "ports"):
            guid = read(root, "sys/class/infiniband", device, "ports", number, "gids/0").replace(":", "")[16:]
            if len(hardware) == 40 and hardware[24:] == guid:
                yield Port(device, int(number), None)
    for device in devices:
        if device in below:
            yield Port(device, 1, None)
    if alone and len(devices) == 1:
        yield Port(devices[0], 1, None)


def rate_of(text: str) -> Optional[float]:
    """Return the rate in Gb/s from a text such as `200 Gb/sec (4X HDR)`; None if there is none."""
    found = re.match(r"([\d.]+) Gb/sec", text)
    return float(found.group(1)) if found else None


def gather(address: str, root: str = "/", rails: str = "1") -> Dict[str, Any]:
    """Return the result: see the top of this file."""
    opened = usable(root)
    devices = sorted({owner for path, owner in opened.items() if owner and "/uverbs" in path})
    known = entries(root, "sys/class/infiniband")
    found: Dict[str, Any] = {
        "problem": "",
        "device": "",
        "ib_port": 1,
        "gid_index": None,
        "rate_gbit": None,
        "link_layer": "",
        "usable": opened,
        "shown": known,
        "foreign": [
            device
            for device in devices
            if os.path.isdir(os.path.join(root, "sys/class/infiniband", device, "device"))
            and not entries(root, "sys/class/infiniband", device, "device/net")
        ],
    }
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if not devices:
        there = "none of {0} can be opened".format(", ".join(known)) if known else "the node shows none"
        found["problem"] = "it has no RDMA device: {0}".format(there)
        return found
    if missing:
        found["problem"] = "its image has no {0}: add the package perftest to the image".format(missing[0])
        return found
    match = next(candidates(address, interface_of(address), devices, root, rails == "1"), None)
    if match is None:
        found["problem"] = "none of its RDMA devices {0} has the address {1}".format(
            ", ".join(devices), address
        )
        return found
    port = os.path.join(root, "sys/class/infiniband", match.device, "ports", str(match.number))
    state = read(port, "state")
    if state and not state.startswith("4:"):
        found["problem"] = "port {0} of {1} is {2}, not ACTIVE".format(
            match.number, match.device, state.partition(": ")[2] or state
        )
    found.update(
        device=match.device,
        ib_port=match.number,
        gid_index=match.gid_index,
        rate_gbit=rate_of(read(port, "rate")),
        link_layer=read(port, "link_layer"),
    )
    return found


def main(arguments: List[str]) -> None:
    """Print the result."""
    json.dump(gather(*arguments), sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1:])
