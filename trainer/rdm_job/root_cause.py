# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the root cause of a failed attempt, in whatever order the facts become known.

A process whose connection broke, and a launcher that ended, may be victims of a lost node. So neither counts
as the cause before every other node has reported after the failure settled. A node that cannot report counts
as lost in the end, or its agent restarts; then that is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rdm_job.culprit import Ended, first
from rdm_job.heartbeat import STALL_S
from rdm_job.protocol import Failure

SILENCE_S = 12.0
"""After this many seconds without a message, an agent counts as lost."""
SETTLE_S = 5.0
"""How long to wait, after a failure, for reports of the process that failed first, in seconds."""


class Replies:
    """Tracks the other nodes' agents: whether they restarted, and to which beat they last replied.

    Each beat of the master has a number, and each report carries the number of the last beat that its agent
    received. So neither an old report from a lost node's socket nor a silent connection counts as a reply to
    a new beat.

    Args:
        nodes: All nodes but the master.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.beat = 0
        self._last_beats = dict.fromkeys(nodes, 0)
        self._lives: dict[str, str] = {}
        self._restarted: dict[str, str] = {}

    def record(self, node: str, message: Mapping[str, Any]) -> None:
        """Process a node's message."""
        life = message.get("life")
        if life and self._lives.setdefault(node, life) != life:
            self._lives[node] = life
            self._restarted[node] = str(message.get("since") or "")
        if "answers" in message:
            self._last_beats[node] = int(message["answers"])

    def have_replied(self, beat: int) -> bool:
        """Return whether all nodes have reported since a beat."""
        return all(last_beat >= beat for last_beat in self._last_beats.values())

    @property
    def restarted(self) -> dict[str, str]:
        """Nodes whose agents restarted and so have lost the attempt: {node: why}."""
        return dict(self._restarted)

    def begin(self) -> None:
        """Begin an attempt: forget the restarts during earlier ones."""
        self._restarted.clear()

    def forget(self, node: str) -> None:
        """Accept any agent of a lost node when it returns, without counting it as a restart."""
        self._lives.pop(node, None)


@dataclass(frozen=True)
class Known:
    """What the master knows of an attempt.

    Attributes:
        lost: Nodes that have been silent for ``SILENCE_S``.
        restarted: Nodes whose agents restarted: ``{node: why}``.
        ended: Processes that failed.
        launcher: The failure of a launcher: it failed, or ended before its processes did.
    """

    lost: tuple[str, ...] = ()
    restarted: Mapping[str, str] | None = None
    ended: tuple[Ended, ...] = ()
    launcher: Failure | None = None

    @property
    def is_well(self) -> bool:
        """Whether nothing has failed."""
        return not (self.lost or self.restarted or self.ended or self.launcher)


def root_cause(known: Known, *, all_reported: bool) -> Failure | None:
    """Return why an attempt failed; None as long as later reports may change the result.

    Args:
        known: What is known by now.
        all_reported: All nodes have reported since the failure settled.
    """
    for node, why in (known.restarted or {}).items():
        return Failure(node, None, f"The agent of {node} {why}.")
    for node in known.lost:
        reason = (
            "the node is down, its container was stopped, the fabric is cut, or its job directory has hung "
            f"for {STALL_S:.0f} s"
        )
        return Failure(node, None, f"{node} has not been heard for {SILENCE_S:g} s: {reason}.")
    found = first(known.ended, echoes=all_reported)
    if found is not None:
        reason = f"Rank {found.rank} on {found.node} failed: {found.error.rstrip('.')}."
        return Failure(found.node, found.rank, reason, found.lines)
    return known.launcher if all_reported else None


class Inquiry:
    """Waits until no later report could name another cause.

    The wait begins with the first failure, and starts again with the first failed process.
    """

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._wait_ends: float | None = None
        self._of_processes = False
        self._awaited_beat: int | None = None

    def root_cause(self, known: Known, now: float) -> Failure | None:
        """Return why an attempt failed; None as long as later reports may change the result.

        Args:
            known: What is known by now.
            now: Seconds of a monotonic clock.
        """
        if known.is_well:
            self._wait_ends = None
            return None
        if self._wait_ends is None or (known.ended and not self._of_processes):
            self._wait_ends, self._awaited_beat = now + SETTLE_S, None
            self._of_processes = bool(known.ended)
        return root_cause(known, all_reported=self._is_over(self._wait_ends, now))

    def _is_over(self, wait_ends: float, now: float) -> bool:
        """Return whether all nodes have reported since the failure settled."""
        if self._awaited_beat is None and now >= wait_ends:
            self._awaited_beat = self._replies.beat + 1
        return self._awaited_beat is not None and self._replies.have_replied(self._awaited_beat)
