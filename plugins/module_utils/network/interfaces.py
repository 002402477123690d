# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's interfaces and routes, and its ssh connection.

They come from the JSON output of `ip`. Without it, /sys, /proc/net and socket ioctls provide the main routing
table and one IPv4 address per interface.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import Interface, Route
from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.plugins.module_utils.hardware import sysfs

_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B


def interfaces(entries: list[dict[str, Any]]) -> list[Interface]:
    """Return the interfaces from the output of `ip -j addr`: name, mac, addresses."""
    return [
        {
            "name": entry["ifname"],
            "mac": entry.get("address", ""),
            "addresses": [
                "{0}/{1}".format(address["local"], address["prefixlen"])
                for address in entry.get("addr_info", [])
                if "local" in address
            ],
        }
        for entry in entries
    ]


def routes(entries: list[dict[str, Any]]) -> list[Route]:
    """Return the routes from `ip -j -4 route show table all`: table, destination, interface, gateway.

    A route with several next hops is returned once per next hop.
    """
    found: list[Route] = []
    for entry in entries:
        destination = str(entry.get("dst", ""))
        if destination != "default" and "/" not in destination:
            destination += "/32"
        for hop in entry.get("nexthops") or [entry]:
            found.append(
                {
                    "table": str(entry.get("table", "main")),
                    "destination": destination,
                    "interface": hop.get("dev", ""),
                    "gateway": hop.get("gateway") or hop.get("via", {}).get("host", ""),
                }
            )
    return found


def interfaces_without_ip(sysfs_root: str = "/sys") -> list[Interface]:
    """Return the interfaces like interfaces(), from sysfs, with only the first IPv4 address of each."""
    found = sysfs.netdevs(sysfs_root)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for entry in found:
            entry["addresses"] = _first_address(query, entry["name"])
    return found


def routes_without_ip(table: str) -> list[Route]:
    """Return the routes like routes(), from the text of /proc/net/route: only those of the main table."""
    found: list[Route] = []
    for line in table.splitlines()[1:]:
        words = line.split()
        if len(words) < 8:
            continue
        address, gateway, mask = (_from_proc(words[column]) for column in (1, 2, 7))
        length = bin(int(words[7], 16)).count("1")
        found.append(
            {
                "table": "main",
                "destination": "default" if mask == "0.0.0.0" else "{0}/{1}".format(address, length),  # noqa: S104
                "interface": words[0],
                "gateway": "" if gateway == "0.0.0.0" else gateway,  # noqa: S104
            }
        )
    return found


def ssh_connection(proc: str = "/proc") -> dict[str, str]:
    """Return the two ends of this process's ssh connection: client, server ("" without ssh).

    sudo drops SSH_CONNECTION, so the environments of the ancestor processes are read, too.
    """
    value = os.environ.get("SSH_CONNECTION", "")
    pid = os.getpid()
    while not value and pid > 1:
        pid = _parent(proc, pid)
        value = _environment(proc, pid).get("SSH_CONNECTION", "")
    words = value.split()
    if len(words) != 4:
        return {"client": "", "server": ""}
    return {"client": words[0], "server": words[2]}


def _first_address(query: socket.socket, interface: str) -> list[str]:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        address = fcntl.ioctl(query.fileno(), _SIOCGIFADDR, request)[20:24]
        mask = fcntl.ioctl(query.fileno(), _SIOCGIFNETMASK, request)[20:24]
    except OSError:
        return []
    return ["{0}/{1}".format(socket.inet_ntoa(address), bin(struct.unpack("!L", mask)[0]).count("1"))]


def _from_proc(word: str) -> str:
    """Return the dotted form of an address in /proc/net/route, a number in native byte order."""
    return socket.inet_ntoa(struct.pack("=L", int(word, 16)))


def _parent(proc: str, pid: int) -> int:
    try:
        # The second field, the name in parentheses, may contain spaces; the fourth is the parent.
        return int(read_text("{0}/{1}/stat".format(proc, pid)).rpartition(")")[2].split()[1])
    except (ValueError, IndexError):
        return 0


def _environment(proc: str, pid: int) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in read_text("{0}/{1}/environ".format(proc, pid)).split("\0"))
    return {key: value for key, _, value in pairs}
