# SPDX-License-Identifier: GPL-3.0-or-later
"""The members of a rendezvous and their ranks. Pure."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Member", "Roster", "differing"]

_NAME = re.compile(r"[^ /]{1,253}")
"""Logs are called after it; a host name has so many characters at most (RFC 1035)."""


@dataclass(frozen=True)
class Member:
    """One member, as it describes itself.

    Args:
        name: What tells it apart from all others: a successor of the same name takes its place.
        host: Its host's name; several may have the same.
        address: Its IPv4 address on the fabric.
        gpus: Processes that it will run.
        gpu: What its GPUs are called; nothing without any.
        versions: Of what must be the same on all members, where the command is known to need that.
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
            ValueError: That is none; the message says what is wrong.
        """
        # A thousand members read a list of a thousand, so each line here runs a million times.
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
    """The members that have come so far; the launcher has rank 0.

    A connection stands for a process. A later process of the same name replaces an earlier one, which lets a
    member that died come again; who comes when all have come waits for a place.

    Args:
        launcher: The first member.
        wanted: How many there must be, the launcher included.
        rank_by: What the workers' ranks follow: their names, addresses, the order of their arrival, or what
            their connections are called.
        expected: What all will be called, the launcher included, where that is known.
    """

    def __init__(
        self, launcher: Member, wanted: int, rank_by: str = "name", expected: Sequence[str] = ()
    ) -> None:
        self.launcher, self.wanted = launcher, wanted
        self._rank_by = rank_by
        self._expected = expected
        # Connection → member, in the order in which they came.
        self._members: dict[str, Member] = {}
        self._waiting: dict[str, Member] = {}
        self._acknowledged: set[str] = set()
        self.round = 0
        """Counts up whenever the members change; earlier acknowledgements are void then."""

    @property
    def missing(self) -> int:
        """How many have yet to come."""
        return self.wanted - 1 - len(self._members)

    @property
    def missing_names(self) -> list[str]:
        """Who has yet to come; nobody where that is not known, as when others came than were expected."""
        here = {self.launcher.name, *(member.name for member in self._members.values())}
        away = [name for name in self._expected if name not in here]
        return away if len(away) == self.missing else []

    @property
    def is_complete(self) -> bool:
        """All have come."""
        return self.missing == 0

    @property
    def is_acknowledged(self) -> bool:
        """All have come, and have acknowledged the list of all."""
        return self.is_complete and self._acknowledged == self._members.keys()

    @property
    def connections(self) -> list[str]:
        """The workers' connections."""
        return list(self._members)

    @property
    def waiting(self) -> list[str]:
        """Connections of those that came when all had come."""
        return list(self._waiting)

    def member(self, connection: str) -> Member | None:
        """Return the member of a connection; None when it takes no part."""
        return self._members.get(connection)

    def join(self, connection: str, member: Member) -> str | None:
        """Let a member take part, or wait.

        Args:
            connection: Its connection.
            member: The member.

        Returns:
            The connection that it replaces, if it replaces one.

        Raises:
            ValueError: It is called as the launcher is.
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
        """Take out whoever is gone, and let the one that has waited longest take its place.

        Returns:
            Who has left; None when the connection stood for nobody.
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

    def acknowledge(self, connection: str, given_round: int) -> None:
        """Note that a member has acknowledged the list of a round."""
        if given_round == self.round and connection in self._members:
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
    """Return in which version members differ from the first one, in one sentence; nothing when they agree.

    Args:
        members: By rank; those that tell no versions may have any.
    """
    telling = [member for member in members if member.versions]
    for package in dict.fromkeys(package for member in telling for package in member.versions):
        version = telling[0].versions.get(package, "")
        others: dict[str, list[str]] = {}
        for member in telling:
            if (other := member.versions.get(package, "")) != version:
                others.setdefault(other, []).append(member.name)
        if others:
            named = (f"{', '.join(names)} {other or 'none'}" for other, names in others.items())
            return (
                f"The environments differ: {telling[0].name} has {package} {version or 'none'}, and "
                f"{'; '.join(named)}; make them the same on all nodes."
            )
    return ""


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts node9 before node10."""
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
