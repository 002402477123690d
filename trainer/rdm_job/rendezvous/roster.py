# SPDX-License-Identifier: GPL-3.0-or-later
"""The members of a rendezvous and their ranks. Pure."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_NAME = re.compile(r"[^ /]{1,253}")
"""A log is named after it; 253 is the longest host name (RFC 1035)."""


@dataclass(frozen=True)
class Member:
    """One member, as it describes itself.

    Args:
        name: Its unique name; a successor of the same name replaces it.
        host: Its host's name; several members may have the same.
        address: Its IPv4 address on the fabric.
        gpus: How many processes it will run.
        gpu: The name of its GPUs; empty without any.
        versions: Versions that must match on all members, if the command needs that.
    """

    name: str
    host: str
    address: str
    gpus: int
    gpu: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Member:
        """Return a member from what another process sent.

        Raises:
            ValueError: It is not a valid member; the message says why.
        """
        # Fast code: a thousand members each read a list of a thousand, so each line runs a million times.
        name, host, gpu = str(given.get("name", "")), str(given.get("host", "")), str(given.get("gpu") or "")
        address, gpus = str(given.get("address")), given.get("gpus")
        for key, text in (("name", name), ("host", host)):
            if not (text.isprintable() and _NAME.fullmatch(text)):
                raise ValueError(f"the {key} {text[:60]!r} is none")
        if not isinstance(gpus, int) or not 0 < gpus <= 1024:
            raise ValueError(f"{name} would run {gpus!r} processes")
        try:
            first = socket.inet_pton(socket.AF_INET, address)[0]
        except (OSError, ValueError):
            raise ValueError(f"{given.get('address')!r} of {name} is no IPv4 address") from None
        # This network, this host, multicast (RFC 6890, RFC 5771).
        if first in (0, 127) or first >= 224:
            raise ValueError(f"others cannot reach {name} at {address}")
        versions = given.get("versions") or {}
        if not isinstance(versions, dict) or not all(isinstance(one, str) for one in versions.values()):
            raise ValueError(f"the versions of {name} are none")
        return cls(name, host, address, gpus, gpu[:80], versions)

    def to_dict(self) -> dict[str, Any]:
        """The member as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        devices = f", {self.gpus} x {self.gpu}" if self.gpu else ""
        return f"{self.name} ({self.address}{devices})"


class Roster:
    """The members that have joined so far; the launcher has rank 0.

    A connection stands for a process. A later process of the same name replaces an earlier one, so that a
    member that died can join again. Members beyond the wanted number wait until another leaves.

    Args:
        launcher: The first member.
        required: How many members there must be, including the launcher.
        rank_by: The order of the workers' ranks: by name, address, arrival, or connection.
        expected: The names of all members, including the launcher, if known.
    """

    def __init__(
        self, launcher: Member, required: int, rank_by: str = "name", expected: Sequence[str] = ()
    ) -> None:
        self.launcher, self.required = launcher, required
        self._rank_by = rank_by
        self._expected = expected
        # Connection → member, in the order of arrival.
        self._members: dict[str, Member] = {}
        self._waiting: dict[str, Member] = {}
        self._acknowledged: set[str] = set()
        self.round = 0
        """Counts up whenever the members change, which voids earlier acknowledgements."""

    @property
    def missing(self) -> int:
        """How many members are missing."""
        return self.required - 1 - len(self._members)

    @property
    def missing_names(self) -> list[str]:
        """The missing members; empty if unknown, for example if unexpected members joined."""
        here = {self.launcher.name, *(member.name for member in self._members.values())}
        away = [name for name in self._expected if name not in here]
        return away if len(away) == self.missing else []

    @property
    def is_complete(self) -> bool:
        """Whether all have joined."""
        return self.missing == 0

    @property
    def is_acknowledged(self) -> bool:
        """Whether all have joined and acknowledged the list of members."""
        return self.is_complete and self._acknowledged == self._members.keys()

    @property
    def connections(self) -> list[str]:
        """The workers' connections."""
        return list(self._members)

    @property
    def waiting(self) -> list[str]:
        """The connections beyond the wanted number."""
        return list(self._waiting)

    def member(self, connection: str) -> Member | None:
        """Return the member of a connection; None if it has none."""
        return self._members.get(connection)

    def join(self, connection: str, member: Member) -> str | None:
        """Add a member, or let it wait.

        Returns:
            The connection that it replaces, if any.

        Raises:
            ValueError: It has the launcher's name.
        """
        if member.name == self.launcher.name:
            raise ValueError(f"the launcher is called {member.name}, too")
        if self._members.get(connection) == member or connection in self._waiting:
            return None
        earlier = next(
            (other for other, one in self._members.items() if one.name == member.name or other == connection),
            None,
        )
        if earlier is None and not self.missing:
            self._waiting[connection] = member
            return None
        if earlier is not None:
            del self._members[earlier]
        self._members[connection] = member
        self._changed()
        return earlier if earlier != connection else None

    def leave(self, connection: str) -> Member | None:
        """Remove a member that is gone; the one that has waited longest replaces it.

        Returns:
            The removed member; None if the connection has none.
        """
        left = self._waiting.pop(connection, None)
        member = self._members.pop(connection, None)
        if member is not None:
            self._changed()
            for other, one in list(self._waiting.items()):
                if self.missing:
                    del self._waiting[other]
                    self.join(other, one)
        return member or left

    def acknowledge(self, connection: str, acknowledged_round: int) -> None:
        """Record that a member has acknowledged the list of a round."""
        if acknowledged_round == self.round and connection in self._members:
            self._acknowledged.add(connection)

    def ranks(self) -> dict[str, int]:
        """Return each worker's rank by its connection; the launcher's is 0."""
        found = list(self._members.items())
        if self._rank_by == "name":
            found.sort(key=lambda item: _natural(item[1].name))
        elif self._rank_by == "address":
            found.sort(key=lambda item: (ipaddress.IPv4Address(item[1].address), _natural(item[1].name)))
        elif self._rank_by == "connection":
            found.sort(key=lambda item: _natural(item[0]))
        return {connection: rank for rank, (connection, _) in enumerate(found, start=1)}

    def by_rank(self) -> list[Member]:
        """Return all members, by rank."""
        ranks = self.ranks()
        return [
            self.launcher,
            *(self._members[connection] for connection in sorted(ranks, key=ranks.__getitem__)),
        ]

    def _changed(self) -> None:
        self.round += 1
        self._acknowledged.clear()


def differing(members: Sequence[Member]) -> str:
    """Return how members' versions differ from those of the first, in one sentence; empty if they match.

    Args:
        members: By rank; those that report no versions are ignored.
    """
    reporting = [member for member in members if member.versions]
    for package in dict.fromkeys(package for member in reporting for package in member.versions):
        version = reporting[0].versions.get(package, "")
        others: dict[str, list[str]] = {}
        for member in reporting:
            if (other := member.versions.get(package, "")) != version:
                others.setdefault(other, []).append(member.name)
        if others:
            named = (f"{', '.join(names)} {other or 'none'}" for other, names in others.items())
            return (
                f"The environments differ: {reporting[0].name} has {package} {version or 'none'}, and "
                f"{'; '.join(named)}; make them the same on all nodes."
            )
    return ""


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts node9 before node10."""
    parts: list[tuple[int, str]] = []
    digits = ""
    for character in name + "\0":
        if character.isascii() and character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, character))
    return parts
