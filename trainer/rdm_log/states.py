# SPDX-License-Identifier: GPL-3.0-or-later
"""Words for the state of a job: our launchers' and Slurm's, in small letters."""

from __future__ import annotations

__all__ = ["ENDED", "FAILED", "FINISHED", "STARTING", "STATES", "STOPPED", "WAITING", "state_of", "states_of"]

FINISHED = {"finished", "completed"}
STOPPED = {"stopped", "cancelled", "revoked"}
FAILED = {"failed", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline", "preempted"}
ENDED = FINISHED | STOPPED | FAILED
STARTING = {"starting", "restarting"}
WAITING = STARTING | {
    *("queued", "pending", "configuring", "requeued", "requeue_hold"),
    *("requeue_fed", "resv_del_hold", "special_exit"),
}
RUNNING = {"running", "stopping", "completing", "signaling", "stage_out", "resizing", "suspended"}
STATES = ENDED | WAITING | RUNNING
"""All words for a job's state that are known."""


_WORST_FIRST = (FAILED, RUNNING, WAITING, STOPPED, FINISHED)


def state_of(said: str) -> str:
    r"""Return the state that a launcher or scheduler says, in small letters; empty when it says none.

    Of several, of a job's parts, it is that of the job: it has failed when one has, and is over when all are.

    >>> state_of("COMPLETED\nFAILED")
    'failed'
    """
    words = states_of(said)
    ranks = [next((rank for rank, some in enumerate(_WORST_FIRST) if word in some), -1) for word in words]
    return words[ranks.index(min(ranks))] if words else ""


def states_of(said: str) -> list[str]:
    """Return each state that is said, a line each, in small letters: sacct tells components and array tasks.

    sacct adds who cancelled a job, and cuts words: ``OUT_OF_ME+``.
    """
    return [_whole(line.lower().split()[0]) for line in said.splitlines() if line.strip()]


def _whole(word: str) -> str:
    if not word.endswith("+"):
        return word
    return next((name for name in sorted(STATES) if name.startswith(word[:-1])), word)
