# SPDX-License-Identifier: GPL-3.0-or-later
"""ssh between bare hosts: the client's configuration, and the trusted host keys.

A file next to the inventory lists the trusted keys by inventory name, whatever address ssh connects to. It is
filled with the keys that the controller's own ssh knows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.ssh_config import (
    known_only_from,
    section,
    sections,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

KEYS_FILE = "ssh_host_keys"
"""Next to the inventory. Committed, it tells everybody else which hosts are the right ones."""
_HEAD = "# Written by rdm-provision, in the form of ssh's known_hosts. Commit it.\n"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?")
_HOP = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?"
_JUMP = re.compile(f"{_HOP}(?:,{_HOP})*")
_KEY = re.compile(r"(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+")
_FILE = re.compile(r"[^\s\"'%]+")


class Host(NamedTuple):
    """One host, as ssh reaches it.

    Attributes:
        name: its name in the inventory.
        address: where ssh connects to.
        user: the login name; empty for the client's own user name.
        port: of sshd.
        identity: file with the private key; empty for the key that all hosts share.
    """

    name: str
    address: str
    user: str = ""
    port: int = 22
    identity: str = ""


def check(hosts: Sequence[Host], jump: str, keep_alive: int) -> list[Problem]:
    """Return the values of the inventory that cannot be written into an ssh_config."""
    problems = []
    if jump and not _JUMP.fullmatch(jump):
        hint = "give [user@]host[:port], or several of them with commas"
        problems.append(Problem(None, f"ssh_config_jump_host {jump!r}", "is no host to go through", hint))
    if not 0 <= keep_alive <= 3600:
        hint = "give seconds up to 3600; 0 sends nothing"
        problems.append(Problem(None, f"ssh_config_keep_alive {keep_alive}", "is no such interval", hint))
    for host in hosts:
        if host.user and not _USER.fullmatch(host.user):
            reason, hint = "is no name of a user", "set ansible_user or ssh_config_user"
            problems.append(Problem(host.name, f"ssh_config_user {host.user!r}", reason, hint))
        if not 0 < host.port < 65536:
            reason, hint = "is no port", "set ssh_config_port to where its sshd listens on the fabric"
            problems.append(Problem(host.name, f"ssh_config_port {host.port}", reason, hint))
        if host.identity and not _FILE.fullmatch(host.identity):
            reason, hint = "cannot be written into ssh's configuration", "rename the file, without spaces"
            problems.append(
                Problem(host.name, f"ansible_ssh_private_key_file {host.identity!r}", reason, hint)
            )
    return problems


def client_config(
    hosts: Sequence[Host], cluster: str, known_hosts: str, keep_alive: int, identity: str = "", jump: str = ""
) -> str:
    """Return an ssh_config that reaches every host by name or address, and checks its key.

    Args:
        hosts: the hosts.
        cluster: the cluster's name.
        known_hosts: the file with their keys.
        keep_alive: ServerAliveInterval in seconds; 0 for none.
        identity: file with the private key; empty for ssh's default.
        jump: the value of ProxyJump; empty for a direct connection.
    """
    parts = [f"# Written by rdm-provision for the cluster {cluster}.\n"]
    for host in hosts:
        lines = [f"HostName {host.address}", f"HostKeyAlias {host.name}", f"Port {host.port}"]
        lines += [f"User {host.user}"] if host.user else []
        lines += [f"IdentityFile {host.identity}"] if host.identity else []
        parts.append(section(f"Host {_names(host)}", lines))
    common = [
        *([f"IdentityFile {identity}", "IdentitiesOnly yes"] if identity else []),
        *([f"ProxyJump {jump}"] if jump else []),
        *known_only_from(known_hosts),
        *([f"ServerAliveInterval {keep_alive}"] if keep_alive else []),
    ]
    return "".join([*parts, sections("Host", [_names(host) for host in hosts], " ", common)])


def _names(host: Host) -> str:
    return " ".join(dict.fromkeys((host.name, host.address)))


def format_keys(keys: Mapping[str, Sequence[str]], head: str = _HEAD) -> str:
    """Return the text of a known_hosts for {host: [`type key`]}."""
    return head + "".join(f"{host} {key}\n" for host, some in keys.items() for key in some)


def parse_keys(text: str, file: str) -> tuple[dict[str, list[str]], list[Problem]]:
    """Return {host: [`type key`]} of a known_hosts, and a problem for each malformed line."""
    found: dict[str, list[str]] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 3 or not _KEY.fullmatch(words[1]) or not fingerprint(words[2]):
            hint = "write `name type key`, as ssh-keyscan prints it, or remove the line"
            problems.append(Problem(None, f"{file}:{number}", "names no host key", hint))
            continue
        for name in words[0].split(","):
            found.setdefault(name, []).append(" ".join(words[1:3]))
    return found, problems


def merge_trusted(
    known: Mapping[str, Sequence[str]], met: Mapping[str, Sequence[str]], file: str
) -> tuple[dict[str, list[str]], list[Problem]]:
    """Return the keys to trust from now on, and the conflicts.

    The file's keys win: a host with another key of the same type is a conflict.

    Args:
        known: {host: [`type key`]} of the file.
        met: the same from the controller's own ssh, for all hosts in their order.
        file: the file's path, for messages.
    """
    problems = []
    for host, keys in met.items():
        of_type = dict(key.split()[:2] for key in known.get(host, ()))
        for kind, key in (one.split()[:2] for one in keys):
            if of_type.get(kind, key) != key:
                other = fingerprint(of_type[kind])
                reason = f"is {fingerprint(key)} for this machine's ssh, and {other} in {file}"
                hint = "if the host was reinstalled, remove its lines there"
                problems.append(Problem(host, f"its host key of type {kind}", reason, hint))
        if not keys and host not in known:
            reason = "is not in the known_hosts of this machine"
            hint = f"log in once by hand and compare the fingerprint, or write its keys into {file}"
            problems.append(Problem(host, "its host key", reason, hint))
    merged = {host: list(known.get(host) or keys) for host, keys in met.items()}
    return {host: keys for host, keys in merged.items() if keys}, problems


def fingerprint(key: str) -> str:
    """Return the fingerprint of a base64 key, as `ssh-keygen -l` prints it; empty if it is not a key."""
    try:
        blob = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=") if blob else ""
