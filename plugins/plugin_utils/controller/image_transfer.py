# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide how an archive gets to the nodes that lack it, and follow the transfer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names, size_text
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_schedule import (
    announce_every_s,
    silent_after_s,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import canonical

FEWEST_NODES = 3
SMALLEST = 256 * 1024 * 1024
"""From so many nodes and bytes, the transfer from node to node saves more than its start costs."""
FEWEST_READERS = 16
"""The same for nodes that read from a file server.

Per GB, the source reads an archive in about 1 s for its pieces, a node uses 5 to 6 CPU seconds to get it and
pass it on, and then the engine takes it from the disk in 3 to 5 s. Until then, a server of 10 Gb/s can send
it to the engines of 11 to 15 nodes.
"""
FILE_SERVERS = frozenset({"afs", "cifs", "fuse.sshfs", "nfs", "nfs4", "smb3"})
"""File systems of one server, which becomes the bottleneck when all nodes read.

Those of many servers (Lustre, GPFS, BeeGFS, Ceph) are made for that. 9p, virtiofs and most of FUSE may be a
disk of the machine itself.
"""
LOCAL_DISKS = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs", "zfs"})
"""File systems where a copy of an archive takes nothing from a server or from memory."""
SILENT_S = 15.0
"""A node that its source has not heard from for so long is given up; among many nodes, after longer."""
STALLED_S = 60.0
"""A node that has received nothing for so long is given up;"""
PIECE_S = 600.0
"""one that receives parts of pieces and no whole one, after this time besides."""

_PROGRESS = "node to node: "


def distribution(chosen: str, nodes: int, size: int, on_controller: bool, file_server: bool = False) -> str:
    """Return how an archive is transferred: ``direct`` or ``peers``.

    By default, each node reads an archive that is on the nodes, unless one file server sends it to many.

    Args:
        chosen: `images_distribution`.
        nodes: how many nodes load it.
        size: bytes of the archive.
        on_controller: whether it is on the controller, and has to be sent in any case.
        file_server: `on_file_server` of the nodes.
    """
    if chosen == "auto":
        many = nodes >= (FEWEST_NODES if on_controller else FEWEST_READERS)
        chosen = "peers" if many and size >= SMALLEST and (on_controller or file_server) else "direct"
    return "peers" if chosen == "peers" and nodes > 1 else "direct"


def on_file_server(inspections: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether nodes read an archive from a file server, and could get it from one another instead.

    Then each has room on a local disk for a copy and for what the engine makes of it, even if that is on the
    same disk.

    Args:
        inspections: results of the module image_archive.
    """
    found = list(inspections)
    for one in found:
        storage = one.get("storage") or {}
        local = storage.get("cache_file_system") in LOCAL_DISKS
        if storage.get("file_system") not in FILE_SERVERS or not local:
            return False
        if storage["cache_free"] < one["size"] + 2 * one["unpacked"]:
            return False
    return bool(found)


def unpacks(inspections: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the source sends an archive decompressed, without the layers that the nodes have.

    The parts of a compressed one cannot be left out. What every node lacks, uncompressed, must be less than
    half of it: decompressing takes time, too.

    Args:
        inspections: results of the module image_archive, of all nodes that lack the archive.
    """
    return all(2 * one.get("new_bytes", one["size"]) < one["size"] < one["unpacked"] for one in inspections)


class Shared(NamedTuple):
    """An image of a registry that one node pulls for others.

    Attributes:
        image: its canonical name.
        hosts: the nodes that lack it, in the order of the inventory; the first pulls it.
    """

    image: str
    hosts: list[str]


def shared_images(lacking: Mapping[str, Mapping[str, Any]]) -> tuple[list[Shared], list[str]]:
    """Return the images of registries that go from node to node, and warnings about those that do not.

    An engine that loads an image does not know its digest in the registry, and an archive has the image for
    one architecture.

    Args:
        lacking: node -> its `architecture`, and the `images` that it lacks, as entries of `images_list`.
    """
    hosts: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for node, found in lacking.items():
        for image, entry in {canonical(one["name"]): one for one in found["images"]}.items():
            hosts.setdefault(image, []).append(node)
            written.setdefault(image, entry["name"])
            if "@" in image:
                reasons[image] = "an engine knows the digest of an image only if it has pulled it"
            elif entry.get("pull") == "always":
                reasons[image] = "pull: always queries the registry in every run"
    shared, warnings = [], []
    for image, nodes in hosts.items():
        first = nodes[0]
        same = [node for node in nodes if lacking[node]["architecture"] == lacking[first]["architecture"]]
        why = reasons.get(image) or f"{first}, which pulls it for others, has another architecture"
        direct = nodes if image in reasons else [node for node in nodes if node not in same]
        if direct and len(nodes) > 1:
            warnings.append(
                f"{written[image]} is pulled by {names(direct)}, and does not go from node to node: {why}"
            )
        if image not in reasons and len(same) > 1:
            shared.append(Shared(image, same))
    return shared, warnings


class Watch:
    """Follows the source's reports on the nodes.

    Args:
        nodes: all nodes that fetch.
        size: bytes of the archive.
        now: seconds of a monotonic clock.
    """

    def __init__(self, nodes: Iterable[str], size: int, now: float) -> None:
        self.size = size
        self.given_up: dict[str, str] = {}
        self.slow: dict[str, str] = {}
        self._moved = dict.fromkeys(nodes, now)
        self._bytes = dict.fromkeys(self._moved, 0)
        self._got = dict(self._moved)
        self._have = dict.fromkeys(self._moved, -1)
        self._share = dict.fromkeys(self._moved, 0.0)
        self._done: set[str] = set()
        self._silent_s = max(SILENT_S, silent_after_s(announce_every_s(len(self._moved))))
        self._stalled_s = max(STALLED_S, self._silent_s)

    def add(self, reported: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Process a report."""
        for name in self._moved:
            one = reported.get(name)
            if one is None:
                if now - self._moved[name] > self._silent_s:
                    self.given_up.setdefault(name, "has not begun to fetch it")
                continue
            if one["have"] != self._have[name]:
                self._have[name], self._moved[name] = one["have"], now
            if one["fetched"] != self._bytes[name]:
                self._bytes[name], self._got[name] = one["fetched"], now
            self._share[name] = one["have"] / one["wanted"] if one["wanted"] else 1.0
            for other, why in one["trouble"].items():
                self.slow.setdefault(other, why)
            if one["done"]:
                self._done.add(name)
                self.given_up.pop(name, None)
            elif one["error"]:
                self.add_error(name, one["error"])
            elif one["silent_s"] > self._silent_s:
                self.given_up[name] = f"was no longer heard at {self._share[name]:.0%}"
            elif now - self._last_received(name) > self._stalled_s:
                waited = f"{self._stalled_s:.0f} s at {self._share[name]:.0%}"
                self.given_up[name] = f"has received nothing for {waited}"
            else:
                self.given_up.pop(name, None)

    def add_error(self, name: str, error: str) -> None:
        """Give a node up that has stopped, for a reason that it has reported itself."""
        self.given_up[name] = f"stopped at {self._share[name]:.0%}: {error}"

    def _last_received(self, name: str) -> float:
        """Return when a node received a piece, or, within `PIECE_S`, a part of the next one."""
        return max(self._moved[name], min(self._got[name], self._moved[name] + PIECE_S))

    def ended(self) -> bool:
        """Return whether every node has the archive or is given up."""
        return all(name in self._done or name in self.given_up for name in self._moved)

    def text(self, image: str) -> str:
        """Return the line that shows the progress."""
        waited = [name for name in self._moved if name not in self.given_up]
        share = sum(self._share[name] for name in waited) / max(1, len(waited))
        nodes = f"{len(waited)} node{'' if len(waited) == 1 else 's'}"
        line = f"{image}: {share:.0%} of {size_text(self.size)} on {nodes}"
        behind = [name for name in waited if share - self._share[name] > 0.25]
        if behind:
            line += f", {names(behind)} behind"
        if self.given_up:
            line += f", given up: {names(self.given_up)}"
        return line


def progress_line(text: str) -> str:
    """Return the line of Ansible's output for a progress text."""
    return _PROGRESS + text


def progress_of(line: str) -> str:
    """Return the progress text of such a line; empty for another line."""
    return line.removeprefix(_PROGRESS).strip() if line.startswith(_PROGRESS) else ""
