# SPDX-License-Identifier: GPL-3.0-or-later
"""What Slurm says of a job, from JSON or text of squeue and sacct. Pure functions.

Releases differ: 22.05 has one state, numbers and nulls where 23.11 and later have lists of a state and its
flags, and ``{"set": true, "infinite": false, "number": 7}``.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "ACCOUNT_FORMAT",
    "QUEUE_FORMAT",
    "Seen",
    "counted",
    "of_account_text",
    "of_answer",
    "of_json",
    "of_queue_text",
    "place",
    "the_job",
]

QUEUE_FORMAT = "%i|%T|%P|%N|%S|%Q|%e|%r"
"""For ``squeue --noheader --format``: the reason, which may hold anything, is last."""
ACCOUNT_FORMAT = "JobID,State%60,Partition,NodeList%1000,ExitCode,Start,End"
"""For ``sacct --noheader --parsable2 --allocations --format``."""

_ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
    }
)
# What a job is in besides its state; squeue prints one of them in the state's place.
_FLAGS = frozenset(
    {
        *("COMPLETING", "CONFIGURING", "EXPEDITING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED"),
        *("REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED"),
    }
)


@dataclass(frozen=True)
class Seen:
    """A job, or one component of a heterogeneous one, as Slurm says.

    Attributes:
        job: Its number; a component's is its own.
        leader: Number of the first component, which is the job's; without components the job's own.
        state: Slurm's word, as ``PENDING``, and nothing besides.
        flags: What it is in besides, as ``COMPLETING``.
        reason: Slurm's word for why it waits or has ended; empty when there is none.
        partition: Its partition.
        nodes: Its nodes, in Slurm's short form.
        by: The user who cancelled it, a name or a number; empty where Slurm does not say.
        start: When it began, or is expected to; None when that is not known. Seconds since 1970.
        priority: Among those that wait.
        code: Exit code of its script.
        signal: The signal that ended it; 0 for none.
        end: When it ended, or will at its time limit; None when that is not known. Seconds since 1970.
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
        """It holds no node any more, and gets none."""
        return self.state in _ENDED and not {"COMPLETING", "REQUEUED"} & set(self.flags)

    @property
    def waits(self) -> bool:
        """It holds no node."""
        return self.state == "PENDING"


def of_json(text: str) -> list[Seen]:
    """Return the jobs that ``squeue --json``, ``sacct --json`` or ``scontrol --json`` printed.

    Raises:
        ValueError: It is something else.
    """
    return of_answer(json.loads(text))


def of_answer(answer: Any) -> list[Seen]:
    """Return the jobs of such JSON, as slurmrestd has it as well.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(answer, dict) or not isinstance(answer.get("jobs"), list):
        raise ValueError("no list of jobs")
    return [_of(job) for job in answer["jobs"]]


def of_queue_text(text: str) -> list[Seen]:
    """Return the jobs that squeue printed with ``QUEUE_FORMAT``."""
    found = []
    for line in text.splitlines():
        words = line.split("|", 7)
        if len(words) != 8 or (numbers := _numbers(words[0])) is None:
            continue
        state, flags = _state([words[1]])
        found.append(
            Seen(
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


def of_account_text(text: str) -> list[Seen]:
    """Return the jobs that sacct printed with ``ACCOUNT_FORMAT``."""
    found = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != 7 or (numbers := _numbers(words[0])) is None:
            continue
        # As in `CANCELLED by 1000`.
        said, _, by = words[1].partition(" by ")
        state, flags = _state([said])
        code, _, signal = words[4].partition(":")
        found.append(
            Seen(
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


def the_job(seen: Iterable[Seen], number: int) -> Seen | None:
    """Return a job of all that were seen: its first component, with what is worst of all its components.

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


def place(seen: Iterable[Seen], job: Seen) -> int | None:
    """Return how many jobs wait for the same partition before a job, and one; None when it does not wait."""
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


def _of(job: Mapping[str, Any]) -> Seen:
    """Return the job that an entry of any release's JSON holds."""
    # sacct's has sections where squeue's has plain keys.
    said = job.get("state")
    state, flags = _state(_words(said.get("current") if isinstance(said, Mapping) else job.get("job_state")))
    reason = said.get("reason") if isinstance(said, Mapping) else job.get("state_reason")
    het = job["het"] if isinstance(job.get("het"), Mapping) else {"job_id": job.get("het_job_id")}
    time = (
        job["time"]
        if isinstance(job.get("time"), Mapping)
        else {"start": job.get("start_time"), "end": job.get("end_time")}
    )
    number = counted(job.get("job_id")) or 0
    code, signal = _exit(job.get("exit_code"))
    return Seen(
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
    """Return the state and the flags among what is said."""
    said = [word.strip().rstrip("+").upper() for word in words if word]
    flags = tuple(word for word in said if word in _FLAGS)
    state = next((word for word in said if word not in _FLAGS), "")
    # A flag in the state's place: which state it is, only the flag tells.
    if not state and flags:
        state = "PENDING" if flags[0].startswith(("REQUEUE", "RESV", "SPECIAL")) else "RUNNING"
    return state, flags


def _words(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value or "")]


def _word(value: Any) -> str:
    """Return what is said, or nothing where Slurm has a word for nothing."""
    text = str(value or "").strip()
    return "" if text in ("None", "(null)", "N/A", "None assigned", "Unknown") else text


def counted(value: Any) -> Any:
    """Return a number of either form; None where none is set."""
    if isinstance(value, Mapping):
        return value.get("number") if value.get("set") and not value.get("infinite") else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _exit(value: Any) -> tuple[int, int]:
    """Return (exit code, signal) of any form: sections, or the number that wait(2) gives."""
    if not isinstance(value, Mapping) or "return_code" not in value:
        number = int(counted(value) or 0)
        return number >> 8, number & 0x7F
    signal = value.get("signal")
    name = signal.get("id", signal.get("signal_id")) if isinstance(signal, Mapping) else None
    return int(counted(value["return_code"]) or 0), int(counted(name) or 0)


def _numbers(text: str) -> tuple[int, int] | None:
    """Return (job, leader) of ``70``, ``70+1``; None of anything else, as a task of an array."""
    found = re.fullmatch(r"(\d+)(?:\+(\d+))?", text.strip())
    return None if found is None else (int(found[1]) + int(found[2] or 0), int(found[1]))


def _time(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        return None
