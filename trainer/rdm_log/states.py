# SPDX-License-Identifier: GPL-3.0-or-later
"""Words for the state of a job: our launchers' and Slurm's, in small letters."""

from __future__ import annotations

__all__ = ["ENDED", "FAILED", "FINISHED", "STATES", "STOPPED", "WAITING", "state_of"]

FINISHED = {"finished", "completed"}
STOPPED = {"stopped", "cancelled", "revoked"}
FAILED = {"failed", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline", "preempted"}
ENDED = FINISHED | STOPPED | FAILED
WAITING = {
    *("queued", "starting", "restarting", "pending", "configuring", "requeued", "requeue_hold"),
    *("requeue_fed", "resv_del_hold", "special_exit"),
}
RUNNING = {"running", "stopping", "completing", "signaling", "stage_out", "resizing", "suspended"}
STATES = ENDED | WAITING | RUNNING
"""All words for a job's state that are known."""


def state_of(said: str) -> str:
    """Return the state that a launcher or scheduler says, in small letters; empty when it says none.

    sacct adds who cancelled a job, and cuts words: ``OUT_OF_ME+``.
    """
    word = said.lower().split()[0] if said.strip() else ""
    if not word.endswith("+"):
        return word
    return next((name for name in sorted(STATES) if name.startswith(word[:-1])), word)
