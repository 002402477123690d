# SPDX-License-Identifier: GPL-3.0-or-later
"""Interfaces, routes and ssh's own connection on a node.

What the `ip` command knows is asked in JSON (iproute2 4.13 or newer). Without it, /sys, /proc/net and the
socket ioctls give what they can: the main routing table and one IPv4 address for each interface.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.hardware import sysfs

_PATH = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
_IP_TIMEOUT = 30.0  # seconds; a node with a full BGP table has a million routes
_SIOCGIFADDR = 0x8915
_SIOCGIFNETMASK = 0x891B


class IpMissing(Exception):  # noqa: N818  # a state of the node, not a fault
    """The `ip` command is missing or cannot answer in JSON; the text says which."""


def ip(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run `ip WORDS` to its end, whatever its status.

    Raises:
        IpMissing: there is no ip command, or it does not end.
    """
    try:
        return subprocess.run(
            ["ip", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=_IP_TIMEOUT,
            check=False,
            env={"PATH": _PATH, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise IpMissing("the ip command (package iproute2) is missing") from None
    except subprocess.TimeoutExpired:
        raise IpMissing("ip {0} took longer than {1:g} s".format(" ".join(words), _IP_TIMEOUT)) from None


def ip_json(*words: str) -> list[dict[str, Any]]:
    """Return what `ip -j WORDS` prints.

    Raises:
        IpMissing: there is no ip command, or it is too old for JSON.
    """
    done = ip("-j", *words)
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise IpMissing(
            "ip -j {0} failed: {1}".format(" ".join(words), reason[0] if reason else "no reason given")
        )
    try:
        # Old versions print nothing instead of an empty list.
        return [entry for entry in json.loads(done.stdout or b"[]") if entry]
    except ValueError:
        raise IpMissing("ip has no JSON output (iproute2 is older than 4.13)") from None


def interfaces(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the interfaces from the output of `ip -j addr`: name, mac, mtu, state, addresses."""
    return [
        {
            "name": entry["ifname"],
            "mac": entry.get("address", ""),
            "mtu": entry.get("mtu", 0),
            "state": sysfs.link_state(entry.get("operstate", "")),
            "addresses": [
                "{0}/{1}".format(address["local"], address["prefixlen"])
                for address in entry.get("addr_info", [])
                if "local" in address
            ],
        }
        for entry in entries
    ]


def routes(entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the routes from `ip -j -4 route show table all`: table, destination, interface, gateway, type.

    A route with several next hops is given once for each of them.
    """
    found = []
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
                    "type": entry.get("type", "unicast"),
                }
            )
    return found


def interfaces_without_ip(sysfs_root: str = "/sys") -> list[dict[str, Any]]:
    """Return the interfaces as interfaces() does, from sysfs, each with its first IPv4 address only."""
    found = sysfs.netdevs(sysfs_root)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for entry in found:
            entry["addresses"] = _first_address(query, entry["name"])
    return found


def routes_without_ip(table: str) -> list[dict[str, str]]:
    """Return the routes as routes() does, from the text of /proc/net/route: the main table only."""
    found = []
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
                "type": "unicast",
            }
        )
    return found


def ssh_connection(proc: str = "/proc") -> dict[str, str]:
    """Return the two ends of the ssh connection that this process runs in: client, server ("" without ssh).

    sudo drops SSH_CONNECTION, so the environments of the processes above this one are asked too.
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
    """Return the dotted form of an address of /proc/net/route: a number in the machine's byte order."""
    return socket.inet_ntoa(struct.pack("=L", int(word, 16)))


def _parent(proc: str, pid: int) -> int:
    try:
        with open("{0}/{1}/stat".format(proc, pid), encoding="utf-8", errors="replace") as file:
            # The second field, the name in parentheses, may hold anything; the fourth is the parent.
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _environment(proc: str, pid: int) -> dict[str, str]:
    try:
        with open("{0}/{1}/environ".format(proc, pid), encoding="utf-8", errors="replace") as file:
            pairs = [pair.partition("=") for pair in file.read().split("\0")]
    except OSError:
        return {}
    return {key: value for key, _, value in pairs}
