# SPDX-License-Identifier: GPL-3.0-or-later
"""How an archive gets to the nodes that lack it: the decision, and how far it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names, size_text

FEWEST_NODES = 3
SMALLEST = 256 * 1024 * 1024
"""From so many nodes and bytes, going from node to node saves more than it costs to begin."""
SILENT_S = 15.0
"""A node that its source has not heard for so long is given up."""
STALLED_S = 60.0
"""So is one that has received nothing for so long."""

_PROGRESS = "node to node: "


def distribution(chosen: str, nodes: int, size: int, on_controller: bool) -> str:
    """Return how an archive is brought: ``direct`` or ``peers``.

    An archive on the nodes is read by each of them, where nothing else was chosen: nobody can know whether it
    lies on a disk of theirs.

    Args:
        chosen: `images_distribution`.
        nodes: how many are to load it.
        size: bytes of the archive.
        on_controller: it is there, and has to be sent anyhow.
    """
    if chosen == "auto":
        chosen = "peers" if on_controller and nodes >= FEWEST_NODES and size >= SMALLEST else "direct"
    return chosen if nodes > 1 else "direct"


class Watch:
    """Follows what a source reports of the nodes.

    Args:
        nodes: all that fetch.
        size: bytes of the archive.
        now: seconds of a clock that only goes forward.
    """

    def __init__(self, nodes: Iterable[str], size: int, now: float) -> None:
        self.size = size
        self.given_up: dict[str, str] = {}
        self.slow: dict[str, str] = {}
        self._moved = dict.fromkeys(nodes, now)
        self._have = dict.fromkeys(self._moved, -1)
        self._share = dict.fromkeys(self._moved, 0.0)
        self._done: set[str] = set()

    def add(self, reported: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """Take in a report."""
        for name in self._moved:
            one = reported.get(name)
            if one is None:
                if now - self._moved[name] > SILENT_S:
                    self.given_up.setdefault(name, "has not begun to fetch it")
                continue
            if one["have"] != self._have[name]:
                self._have[name], self._moved[name] = one["have"], now
            self._share[name] = one["have"] / one["wanted"] if one["wanted"] else 1.0
            for other, why in one["trouble"].items():
                self.slow.setdefault(other, why)
            if one["done"]:
                self._done.add(name)
                self.given_up.pop(name, None)
            elif one["error"]:
                self.given_up[name] = f"stopped at {self._share[name]:.0%}: {one['error']}"
            elif one["silent_s"] > SILENT_S:
                self.given_up[name] = f"was no longer heard at {self._share[name]:.0%}"
            elif now - self._moved[name] > STALLED_S:
                self.given_up[name] = f"has received nothing for {STALLED_S:.0f} s at {self._share[name]:.0%}"
            else:
                self.given_up.pop(name, None)

    def ended(self) -> bool:
        """Return whether all nodes have it, or are given up."""
        return all(name in self._done or name in self.given_up for name in self._moved)

    def text(self, image: str) -> str:
        """Return the line for the run's screen."""
        waited = [name for name in self._moved if name not in self.given_up]
        share = sum(self._share[name] for name in waited) / max(1, len(waited))
        line = f"{image}: {share:.0%} of {size_text(self.size)} on {len(waited)} nodes"
        behind = [name for name in waited if share - self._share[name] > 0.25]
        if behind:
            line += f", {names(behind)} behind"
        if self.given_up:
            line += f", given up: {names(self.given_up)}"
        return line


def progress_line(text: str) -> str:
    """Return the line of Ansible's output that carries a progress."""
    return _PROGRESS + text


def progress_of(line: str) -> str:
    """Return the progress that such a line carries, empty for another one."""
    return line.removeprefix(_PROGRESS).strip() if line.startswith(_PROGRESS) else ""
