# SPDX-License-Identifier: GPL-3.0-or-later
"""The ssh client's configuration in the containers of a cluster: by name or by MY_IP, host keys checked."""

from __future__ import annotations

import re
from collections import Counter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PATTERNS_PER_LINE = 50  # old versions of ssh limit the length of a line
_IMAGES_OWN = "/etc/ssh/ssh_config.image"  # where the container's start puts the image's configuration


def parse_dictionary(text: str) -> list[tuple[str, str]]:
    """Return (node, MY_IP) of each line of a dictionary, in its order.

    Raises:
        ValueError: a line is not a name and an address, or a name would be a pattern to ssh.
    """
    pairs = []
    for line in text.splitlines():
        words = line.split()
        if len(words) != 2 or not all(_NAME.fullmatch(word) for word in words):
            raise ValueError("{0!r} is not a node name and an address".format(line))
        pairs.append((words[0], words[1]))
    return pairs


def ssh_client_config(dictionary: str, port: int, directory: str) -> str:
    """Return an ssh_config with which root reaches every container of the cluster.

    For other hosts it leaves everything to the image's own configuration.

    Names are looked up here, not in DNS, but whatever their case, as there: `Match originalhost` compares so,
    and `Host` does not. A container's host key is believed for its MY_IP, by the certificate that comes with
    it, so that a node more or less changes no known_hosts.

    Args:
        dictionary: lines `node MY_IP`.
        port: where the containers' sshd listens.
        directory: where the keys are, in the container.

    Raises:
        ValueError: the dictionary is not well-formed.
    """
    pairs = parse_dictionary(dictionary)
    settings = (
        "  User root\n"
        "  Port {port}\n"
        "  IdentityFile {directory}/id_ed25519\n"
        "  IdentitiesOnly yes\n"
        "  HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com\n"
        "  StrictHostKeyChecking yes\n"
        "  UserKnownHostsFile {directory}/known_hosts\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  CheckHostIP no\n"
        "  UpdateHostKeys no\n"
        "  PasswordAuthentication no\n"
    ).format(port=int(port), directory=directory)
    parts = ["# Written by rdm-provision.\n"]
    patterns = [word for pair in pairs for word in dict.fromkeys(pair)]
    for start in range(0, len(patterns), _PATTERNS_PER_LINE):
        some = patterns[start : start + _PATTERNS_PER_LINE]
        parts.append("Match originalhost {0}\n{1}".format(",".join(some), settings))
    alike = Counter(name.lower() for name, _ in pairs)
    for name, my_ip in pairs:
        if name != my_ip:
            # Of two names that differ by their case, each is the one that is written so.
            match = "Match originalhost" if alike[name.lower()] == 1 else "Host"
            parts.append("{0} {1}\n  HostName {2}\n".format(match, name, my_ip))
    parts.append("Host *\n  Include {0}\n".format(_IMAGES_OWN))
    return "".join(parts)
