# SPDX-License-Identifier: GPL-3.0-or-later
"""The ssh client's configuration in the containers of a cluster: by name or by MY_IP, host keys checked."""

from __future__ import annotations

import re

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


def ssh_client_config(dictionary: str, alias: str, port: int, directory: str) -> str:
    """Return an ssh_config with which root reaches every container of the cluster.

    For other hosts it leaves everything to the image's own configuration.

    All containers have one host key, known under one alias, so that a node more or less changes no
    known_hosts. Names are looked up here, not in DNS.

    Args:
        dictionary: lines `node MY_IP`.
        alias: the name under which known_hosts has the host key.
        port: where the containers' sshd listens.
        directory: where the keys are, in the container.

    Raises:
        ValueError: the dictionary or the alias is not well-formed.
    """
    if not _NAME.fullmatch(alias):
        raise ValueError("{0!r} cannot name a host key".format(alias))
    pairs = parse_dictionary(dictionary)
    settings = (
        "  User root\n"
        "  Port {port}\n"
        "  IdentityFile {directory}/id_ed25519\n"
        "  IdentitiesOnly yes\n"
        "  HostKeyAlias {alias}\n"
        "  StrictHostKeyChecking yes\n"
        "  UserKnownHostsFile {directory}/known_hosts\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  CheckHostIP no\n"
        "  UpdateHostKeys no\n"
        "  PasswordAuthentication no\n"
    ).format(port=int(port), directory=directory, alias=alias)
    parts = ["# Written by rdm-provision.\n"]
    patterns = [word for pair in pairs for word in dict.fromkeys(pair)]
    for start in range(0, len(patterns), _PATTERNS_PER_LINE):
        parts.append("Host {0}\n{1}".format(" ".join(patterns[start : start + _PATTERNS_PER_LINE]), settings))
    parts += ["Host {0}\n  HostName {1}\n".format(*pair) for pair in pairs if pair[0] != pair[1]]
    parts.append("Host *\n  Include {0}\n".format(_IMAGES_OWN))
    return "".join(parts)
