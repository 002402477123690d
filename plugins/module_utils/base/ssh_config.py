# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes ssh client configurations, among them that of a cluster's containers. Host keys are always checked.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Iterable, List, Sequence

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PATTERNS_PER_LINE = 50  # old versions of ssh limit the length of a line
_IMAGES_OWN = "/etc/ssh/ssh_config.image"  # the container's start moves the image's file there


def section(head: str, settings: Iterable[str]) -> str:
    """Return one section: a line `Host ...` or `Match ...` with its settings."""
    return "{0}\n{1}".format(head, "".join("  {0}\n".format(setting) for setting in settings))


def sections(keyword: str, patterns: Sequence[str], separator: str, settings: Sequence[str]) -> str:
    """Return sections with the same settings for many hosts.

    Args:
        keyword: `Host` or `Match originalhost`.
        patterns: the hosts.
        separator: between patterns: a space after `Host`, a comma after `Match`.
        settings: lines, such as `User root`.
    """
    lines = range(0, len(patterns), _PATTERNS_PER_LINE)
    some = (separator.join(patterns[start : start + _PATTERNS_PER_LINE]) for start in lines)
    return "".join(section("{0} {1}".format(keyword, one), settings) for one in some)


def known_only_from(file: str) -> List[str]:
    """Return the settings that make ssh trust only the host keys in one file."""
    return [
        "StrictHostKeyChecking yes",
        "UserKnownHostsFile {0}".format(file),
        "GlobalKnownHostsFile /dev/null",
        "CheckHostIP no",
        "UpdateHostKeys no",
    ]


def parse_address_map(text: str) -> list[tuple[str, str]]:
    """Return (node, MY_IP) of each line of an address map, in order.

    Raises:
        ValueError: a line is not a name and an address, or ssh would read a name as a pattern.
    """
    pairs = []
    for line in text.splitlines():
        words = line.split()
        if len(words) != 2 or not all(_NAME.fullmatch(word) for word in words):
            raise ValueError("{0!r} is not a node name and an address".format(line))
        pairs.append((words[0], words[1]))
    return pairs


def ssh_client_config(address_map: str, port: int, directory: str) -> str:
    """Return an ssh_config with which root reaches every container of the cluster.

    For other hosts the image's own configuration applies.

    It resolves names without DNS, and ignores case as DNS does: `Match originalhost` does so, `Host` does
        not.
    Host keys are trusted by their certificates, so adding or removing a node does not change known_hosts.

    Args:
        address_map: lines `node MY_IP`.
        port: of the containers' sshd.
        directory: the keys' directory in the container.

    Raises:
        ValueError: the address map is not well-formed.
    """
    pairs = parse_address_map(address_map)
    settings = [
        "User root",
        "Port {0}".format(int(port)),
        "IdentityFile {0}/id_ed25519".format(directory),
        "IdentitiesOnly yes",
        "HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com",
        *known_only_from("{0}/known_hosts".format(directory)),
        "PasswordAuthentication no",
    ]
    patterns = [word for pair in pairs for word in dict.fromkeys(pair)]
    parts = ["# Written by rdm-provision.\n", sections("Match originalhost", patterns, ",", settings)]
    alike = Counter(name.lower() for name, _ in pairs)
    for name, my_ip in pairs:
        if name != my_ip:
            # Names that differ only in case match their exact spelling.
            match = "Match originalhost" if alike[name.lower()] == 1 else "Host"
            parts.append(section("{0} {1}".format(match, name), ["HostName {0}".format(my_ip)]))
    parts.append(section("Host *", ["Include {0}".format(_IMAGES_OWN)]))
    return "".join(parts)
