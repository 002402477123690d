# SPDX-License-Identifier: GPL-3.0-or-later
"""Combines what a job's agents and Slurm report into the job's state. Pure functions.

While agents run, their state counts. Before they start, and if they have ended without a final state, Slurm's
does.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rdm_job.protocol import State
from rdm_job.slurm import states
from rdm_job.slurm.reasons import never, why
from rdm_job.slurm.states import SlurmJob

LATE_S = 90.0
"""How long the agents' final state may take to reach the login host, in seconds: NFS may show a directory as
it was up to a minute ago (nfs(5), acdirmax)."""


def current(
    known: State,
    seen: SlurmJob | None,
    queue: Iterable[SlurmJob],
    is_stopped: bool,
    now: float,
    last_lines: Sequence[str] = (),
    completed: float | None = None,
) -> State:
    """Return the state of a job.

    Args:
        known: The state that its agents last wrote.
        seen: The job in Slurm; None if Slurm does not know it any more.
        queue: All jobs in Slurm's memory.
        is_stopped: Whether it was stopped by `rdm-provision stop`.
        now: Seconds since 1970.
        last_lines: The last lines of the script's and srun's output.
        completed: When this host first saw that Slurm's job had succeeded, by the same clock as ``now``; None
            if it has not, or not to wait for the agents' final state.
    """
    if known.has_ended:
        return known
    if seen is None:
        message = "Slurm does not know the job any more, and its agents have not said how it ended."
        return replace(known, state="failed", reason=message, ended=now)
    if seen.waits:
        before = known.reason if known.state == "queued" and known.restarts else ""
        return replace(known, state="queued", reason=f"{before} {_waits(seen, queue, now)}".strip())
    if seen.state == "COMPLETED" and completed is not None and 0 <= now - completed < LATE_S:
        return replace(
            known, reason="Slurm says that it has ended; what its agents said last is not here yet."
        )
    if seen.has_ended:
        state, reason = _ended(seen, known, is_stopped, last_lines)
        return replace(known, state=state, reason=reason, ended=now)
    if "CONFIGURING" in seen.flags:
        return replace(known, state="starting", reason="Its nodes are being prepared.")
    if seen.state in ("SUSPENDED", "STOPPED"):
        return replace(known, reason="Slurm has suspended it.")
    if known.state == "queued":
        return replace(known, state="starting", reason="")
    return known


def goes_on(known: State, most_restarts: int) -> bool:
    """Whether a job whose agents have ended should restart on other nodes.

    Args:
        known: The state that its agents last wrote.
        most_restarts: ``launcher.max_restarts``.
    """
    if known.state == "queued":
        return True
    # These states are not final: an agent was killed before it could write one.
    return known.state in ("starting", "running", "restarting") and known.restarts < most_restarts


def _waits(seen: SlurmJob, queue: Iterable[SlurmJob], now: float) -> str:
    """Return the message that a job waits: where, why and until when, as far as Slurm reports it."""
    queue_position = states.queue_position(queue, seen)
    text = f"It waits in partition {seen.partition}" if seen.partition else "It waits"
    if queue_position:
        text += f", {_ordinal(queue_position)} in the queue"
    if reason := why(seen.reason):
        text += f": {reason}"
    if seen.start and seen.start > now:
        text += f"; Slurm expects to start it {time.strftime('%Y-%m-%d %H:%M', time.localtime(seen.start))}"
    return f"{text}."


def _ended(seen: SlurmJob, known: State, is_stopped: bool, last_lines: Sequence[str]) -> tuple[str, str]:
    """Return the state and the reason of a job that Slurm has ended."""
    if seen.state == "CANCELLED":
        if is_stopped:
            return "stopped", "It was cancelled, as requested."
        agents = f" {known.reason}" if known.state == "stopping" else ""
        who = f"by {seen.by}" if seen.by else "by somebody"
        # The reason for waiting no longer matters, unless Slurm has cancelled the job for it.
        because = f" ({why(seen.reason)})" if never(seen.reason) else ""
        return "stopped", f"It was cancelled {who}, not by rdm-provision stop{because}.{agents}"
    saved = known.progress.get("checkpoint")
    lost = f"; its newest checkpoint is of iteration {saved}" if saved else ""
    on = f" ({seen.nodes})" if seen.nodes else ""
    words = {
        "TIMEOUT": f"It reached its time limit and was ended{lost}.",
        "DEADLINE": f"It reached its deadline and was ended{lost}.",
        "NODE_FAIL": f"Slurm says that a node of it failed{on}{lost}.",
        "PREEMPTED": "It gave way to a job of higher priority, and Slurm did not put it back into the queue "
        f"(PreemptMode, or no restarts){lost}: resume it.",
        "OUT_OF_MEMORY": f"It used more memory than Slurm gave it{on}: request more with launcher.slurm.mem.",
        "BOOT_FAIL": f"Slurm could not prepare its nodes{on}.",
        "LAUNCH_FAILED": f"Slurm could not start it on its nodes{on}.",
        "REVOKED": "Another cluster runs it.",
    }
    if seen.state in words:
        return "failed", words[seen.state]
    how = f" by signal {seen.signal}" if seen.signal else f" with exit code {seen.code}"
    detail = (
        f": {last_lines[-1].strip().removeprefix('Error: ').rstrip('.')}"
        if last_lines
        else "; slurm.out in its directory may say why"
    )
    return "failed", f"Its script ended{how} before its agents said how it went{detail}."


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
