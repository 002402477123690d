# SPDX-License-Identifier: GPL-3.0-or-later
"""Parses the state of jobs from the JSON or text of squeue and sacct. Pure functions.

Releases differ: 22.05 has a single state, plain numbers and nulls; 23.11 and later have a list of a state and
its flags, and ``{"set": true, "infinite": false, "number": 7}``.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

QUEUE_FORMAT = "%i|%T|%P|%N|%S|%Q|%e|%r"
"""For ``squeue --noheader --format``. The reason is last, because it may contain anything."""
ACCOUNT_FORMAT = "JobID,State%60,Partition,NodeList%1000,ExitCode,Start,End"
"""For ``sacct --noheader --parsable2 --allocations --format``."""

_ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
    }
)
# Flags that a job has besides its state; squeue may print one instead of the state.
_FLAGS = frozenset(
    {
        *("COMPLETING", "CONFIGURING", "EXPEDITING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED"),
        *("REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED"),
    }
)


@dataclass(frozen=True)
class SlurmJob:
    """A job, or one component of a heterogeneous job, as Slurm reports it.

    Attributes:
        job: Its id; a component has its own.
        leader: The id of the first component, which is the job's; without components the job's own.
        state: Slurm's base state, such as ``PENDING``, without flags.
        flags: Its flags, such as ``COMPLETING``.
        reason: Slurm's code for why it waits or has ended; empty without one.
        partition: Its partition.
        nodes: Its nodes, in Slurm's short form.
        by: The user who cancelled it, a name or a number; empty if Slurm does not report it.
        start: When it began, or is expected to; None if unknown. Seconds since 1970.
        priority: Its priority among the jobs that wait.
        code: The exit code of its script.
        signal: The signal that ended it; 0 for none.
        end: When it ended, or will at its time limit; None if unknown. Seconds since 1970.
    """

    job: int
    leader: int
    state: str
    flags: tuple[str, ...] = ()
    reason: str = ""
    partition: str = ""
    nodes: str = ""
    by: str = ""
    start: float | None = None
    priority: int = 0
    code: int = 0
    signal: int = 0
    end: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it holds no node any more, and will not get any."""
        return self.state in _ENDED and not {"COMPLETING", "REQUEUED"} & set(self.flags)

    @property
    def waits(self) -> bool:
        """Whether it waits for nodes."""
        return self.state == "PENDING"


def of_json(text: str) -> list[SlurmJob]:
    """Return the jobs that ``squeue --json``, ``sacct --json`` or ``scontrol --json`` printed.

    Raises:
        ValueError: It has another form.
    """
    return of_answer(json.loads(text))


def of_answer(answer: Any) -> list[SlurmJob]:
    """Return the jobs of such JSON, which slurmrestd returns as well.

    Raises:
        ValueError: It has another form.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("jobs"), list):
        raise ValueError("no list of jobs")
    return [_of(job) for job in answer["jobs"]]


def of_queue_text(text: str) -> list[SlurmJob]:
    """Return the jobs that squeue printed with ``QUEUE_FORMAT``."""
    found = []
    for line in text.splitlines():
        words = line.split("|", 7)
        if len(words) != 8 or (numbers := _numbers(words[0])) is None:
            continue
        state, flags = _state([words[1]])
        found.append(
            SlurmJob(
                *numbers,
                state,
                flags,
                _word(words[7]),
                words[2],
                _word(words[3]),
                start=_time(words[4]),
                priority=int(words[5]) if words[5].isdigit() else 0,
                end=_time(words[6]),
            )
        )
    return found


def of_account_text(text: str) -> list[SlurmJob]:
    """Return the jobs that sacct printed with ``ACCOUNT_FORMAT``."""
    found = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != 7 or (numbers := _numbers(words[0])) is None:
            continue
        # Such as `CANCELLED by 1000`.
        name, _, by = words[1].partition(" by ")
        state, flags = _state([name])
        code, _, signal = words[4].partition(":")
        found.append(
            SlurmJob(
                *numbers,
                state,
                flags,
                partition=words[2],
                nodes=_word(words[3]),
                by=by.strip(),
                start=_time(words[5]),
                code=int(code) if code.isdigit() else 0,
                signal=int(signal) if signal.isdigit() else 0,
                end=_time(words[6]),
            )
        )
    return found


def the_job(seen: Iterable[SlurmJob], number: int) -> SlurmJob | None:
    """Return one of the jobs: its first component, with the worst state of all its components.

    A heterogeneous job is one job: it waits until all its components can run, and ends as one.
    """
    parts = sorted((one for one in seen if one.leader == number), key=lambda one: one.job)
    if not parts:
        return None
    first = parts[0]
    nodes = ",".join(part.nodes for part in parts if part.nodes)
    ended = [part for part in parts if part.state in _ENDED and part.state != "COMPLETED"]
    worst = ended[0] if first.state == "COMPLETED" and ended else first
    waiting = next((part for part in parts if part.waits and part.reason not in ("", "Priority")), first)
    return replace(
        worst,
        job=number,
        nodes=nodes,
        reason=waiting.reason if first.waits else worst.reason,
        partition=waiting.partition if first.waits else worst.partition,
        by=next((part.by for part in parts if part.by), ""),
    )


def queue_position(seen: Iterable[SlurmJob], job: SlurmJob) -> int | None:
    """Return a job's place in the queue of its partition, from 1; None if it does not wait."""
    if not job.waits:
        return None
    before = {
        one.leader
        for one in seen
        if one.waits
        and one.leader != job.job
        and one.partition == job.partition
        and (one.priority, -one.leader) > (job.priority, -job.job)
    }
    return len(before) + 1


def _of(job: Mapping[str, Any]) -> SlurmJob:
    """Return the job from a JSON entry of any release."""
    # sacct's entries have sections, and squeue's have plain keys.
    section = job.get("state")
    state, flags = _state(
        _words(section.get("current") if isinstance(section, Mapping) else job.get("job_state"))
    )
    reason = section.get("reason") if isinstance(section, Mapping) else job.get("state_reason")
    het = job["het"] if isinstance(job.get("het"), Mapping) else {"job_id": job.get("het_job_id")}
    time = (
        job["time"]
        if isinstance(job.get("time"), Mapping)
        else {"start": job.get("start_time"), "end": job.get("end_time")}
    )
    number = counted(job.get("job_id")) or 0
    code, signal = _exit(job.get("exit_code"))
    return SlurmJob(
        number,
        counted(het.get("job_id")) or number,
        state,
        flags,
        _word(reason),
        str(job.get("partition") or ""),
        _word(job.get("nodes")),
        _word(job.get("kill_request_user")),
        counted(time.get("start")) or None,
        int(counted(job.get("priority")) or 0),
        code,
        signal,
        counted(time.get("end")) or None,
    )


def _state(words: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return the state and the flags from a list of both."""
    names = [word.strip().rstrip("+").upper() for word in words if word]
    flags = tuple(word for word in names if word in _FLAGS)
    state = next((word for word in names if word not in _FLAGS), "")
    # Only a flag was printed: derive the state from it.
    if not state and flags:
        state = "PENDING" if flags[0].startswith(("REQUEUE", "RESV", "SPECIAL")) else "RUNNING"
    return state, flags


def _words(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value or "")]


def _word(value: Any) -> str:
    """Return a value, or an empty text for Slurm's words for nothing."""
    text = str(value or "").strip()
    return "" if text in ("None", "(null)", "N/A", "None assigned", "Unknown") else text


def counted(value: Any) -> Any:
    """Return a number in either form; None if it is not set."""
    if isinstance(value, Mapping):
        return value.get("number") if value.get("set") and not value.get("infinite") else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _exit(value: Any) -> tuple[int, int]:
    """Return (exit code, signal) from either form: sections, or a status of wait(2)."""
    if not isinstance(value, Mapping) or "return_code" not in value:
        number = int(counted(value) or 0)
        return number >> 8, number & 0x7F
    signal = value.get("signal")
    name = signal.get("id", signal.get("signal_id")) if isinstance(signal, Mapping) else None
    return int(counted(value["return_code"]) or 0), int(counted(name) or 0)


def _numbers(text: str) -> tuple[int, int] | None:
    """Return (job, leader) of ``70`` or ``70+1``; None of anything else, such as an array task."""
    found = re.fullmatch(r"(\d+)(?:\+(\d+))?", text.strip())
    return None if found is None else (int(found[1]) + int(found[2] or 0), int(found[1]))


def _time(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        return None
