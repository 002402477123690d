# SPDX-License-Identifier: GPL-3.0-or-later
"""The root cause of a failed attempt, in whatever order facts become known.

A process whose connection broke, and a launcher that ended, may be victims of a node that has gone. So
neither counts as the cause before every other node has reported, after all could be known there. A node that
cannot report is lost in time, or its agent restarts, and then that is the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rdm_job.culprit import Ended, first
from rdm_job.heartbeat import STALL_S
from rdm_job.protocol import Failure

__all__ = ["SETTLE_S", "SILENCE_S", "Inquiry", "Known", "Words", "root_cause"]

SILENCE_S = 12.0
"""After so many seconds without a word, an agent counts as lost."""
SETTLE_S = 5.0
"""For how long a failed attempt is watched for the process that failed first, in seconds."""


class Words:
    """What the other nodes' agents have said of themselves: which life they lead, and to what they answer.

    Each beat of the master has a number, and each report that of the last beat that its agent has heard. A
    report that lay in a socket while its node went, and a connection without a word, answer to no new beat.

    Args:
        nodes: All nodes but the master.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.beat = 0
        self._answered = dict.fromkeys(nodes, 0)
        self._lives: dict[str, str] = {}
        self._anew: dict[str, str] = {}

    def hear(self, node: str, message: Mapping[str, Any]) -> None:
        """Take in what a node has said."""
        life = message.get("life")
        if life and self._lives.setdefault(node, life) != life:
            self._lives[node] = life
            self._anew[node] = str(message.get("since") or "")
        if "answers" in message:
            self._answered[node] = int(message["answers"])

    def have_answered(self, beat: int) -> bool:
        """Return whether all nodes have said how they were after a beat."""
        return all(answered >= beat for answered in self._answered.values())

    @property
    def anew(self) -> dict[str, str]:
        """Nodes that have nothing of the attempt any more, because their agents began anew: {node: why}."""
        return dict(self._anew)

    def begin(self) -> None:
        """Begin an attempt: who begins anew from now on does it in this one."""
        self._anew.clear()

    def forget(self, node: str) -> None:
        """Take whatever agent of a lost node comes next for its agent."""
        self._lives.pop(node, None)


@dataclass(frozen=True)
class Known:
    """What the master knows of an attempt.

    Attributes:
        lost: Nodes that have not been heard for ``SILENCE_S``.
        anew: Nodes whose agents began anew: ``{node: why}``.
        ended: Processes that ended, and not in order.
        launcher: What is to be said of a launcher that ended without its processes, or not in order.
    """

    lost: tuple[str, ...] = ()
    anew: Mapping[str, str] | None = None
    ended: tuple[Ended, ...] = ()
    launcher: Failure | None = None

    @property
    def is_well(self) -> bool:
        """Whether nothing has failed."""
        return not (self.lost or self.anew or self.ended or self.launcher)


def root_cause(known: Known, *, all_heard: bool) -> Failure | None:
    """Return what an attempt failed of; None as long as it may turn out to be something else, or nothing.

    Args:
        known: What is known by now.
        all_heard: Nothing else can come, but what these nodes may do from now on.
    """
    for node, why in (known.anew or {}).items():
        return Failure(node, None, f"The agent of {node} {why}.")
    for node in known.lost:
        reason = (
            "the node is down, its container was stopped, the fabric is cut, or its job directory has hung "
            f"for {STALL_S:.0f} s"
        )
        return Failure(node, None, f"{node} has not been heard for {SILENCE_S:g} s: {reason}.")
    found = first(known.ended, echoes=all_heard)
    if found is not None:
        reason = f"Rank {found.rank} on {found.node} failed: {found.error.rstrip('.')}."
        return Failure(found.node, found.rank, reason, found.lines)
    return known.launcher if all_heard else None


class Inquiry:
    """Waits until nothing that is still to come could be the cause.

    It begins with the first thing that fails, and once more with the first process.

    Args:
        words: Whose answers are waited for.
    """

    def __init__(self, words: Words) -> None:
        self._words = words
        self._settles: float | None = None
        self._of_processes = False
        self._question: int | None = None

    def root_cause(self, known: Known, now: float) -> Failure | None:
        """Return what an attempt failed of; None as long as it may turn out to be something else, or nothing.

        Args:
            known: What is known by now.
            now: Seconds on a clock that never goes back.
        """
        if known.is_well:
            self._settles = None
            return None
        if self._settles is None or (known.ended and not self._of_processes):
            self._settles, self._question = now + SETTLE_S, None
            self._of_processes = bool(known.ended)
        return root_cause(known, all_heard=self._is_over(self._settles, now))

    def _is_over(self, settles: float, now: float) -> bool:
        """Return whether all nodes have said how they are since the failure has settled."""
        if self._question is None and now >= settles:
            self._question = self._words.beat + 1
        return self._question is not None and self._words.have_answered(self._question)
