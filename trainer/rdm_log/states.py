# SPDX-License-Identifier: GPL-3.0-or-later
"""Words for the state of a job: our launchers' and Slurm's, in lower case."""

from __future__ import annotations

FINISHED = {"finished", "completed"}
STOPPED = {"stopped", "cancelled", "revoked"}
FAILED = {"failed", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline", "preempted"}
ENDED = FINISHED | STOPPED | FAILED
STARTING = {"starting", "restarting"}
WAITING = STARTING | {
    *("queued", "pending", "configuring", "requeued", "requeue_hold"),
    *("requeue_fed", "resv_del_hold", "special_exit"),
}
_RUNNING = {"running", "stopping", "completing", "signaling", "stage_out", "resizing", "suspended"}
STATES = ENDED | WAITING | _RUNNING
"""All known words for a job's state."""


_WORST_FIRST = (FAILED, _RUNNING, WAITING, STOPPED, FINISHED)


def state_of(reported: str) -> str:
    r"""Return the state that a launcher or scheduler reports, in lower case; empty if there is none.

    From the states of a job's parts follows that of the job: failed if any part failed, over if all are.

    >>> state_of("COMPLETED\nFAILED")
    'failed'
    """
    words = states_of(reported)
    ranks = [next((rank for rank, some in enumerate(_WORST_FIRST) if word in some), -1) for word in words]
    return words[ranks.index(min(ranks))] if words else ""


def states_of(reported: str) -> list[str]:
    """Return the state in each line, in lower case: sacct lists components and array tasks.

    sacct appends who cancelled a job, and cuts words: ``OUT_OF_ME+``.
    """
    return [_whole(line.lower().split()[0]) for line in reported.splitlines() if line.strip()]


def _whole(word: str) -> str:
    if not word.endswith("+"):
        return word
    return next((name for name in sorted(STATES) if name.startswith(word[:-1])), word)
