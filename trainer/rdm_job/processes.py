# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of a job on this node, found by a variable in their environment."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

JOB_VARIABLE = "RDM_JOB_ID"
ATTEMPT_VARIABLE = "RDM_ATTEMPT"

_ATTEMPT = f"{ATTEMPT_VARIABLE}=".encode()
_MANY_FILES = 1 << 20
# A flag of the kernel's own threads in proc(5), which have no environment either.
_PF_KTHREAD = 0x00200000


def of_job(job: str, *, until: int | None = None) -> list[int]:
    """Return a job's other running processes, including those that a launcher started over ssh.

    Args:
        job: The value of their variable, ``Request.job_id``.
        until: The last attempt whose processes count; by default, those of all attempts do.
    """
    entry = f"{JOB_VARIABLE}={job}".encode()
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            variables = _environment(int(path.name)).split(b"\0")
            if entry in variables and not _is_after(until, variables) and alive(int(path.name)):
                found.append(int(path.name))
    return found


def _is_after(until: int | None, variables: list[bytes]) -> bool:
    """Whether a process with these variables is of a later attempt; without a number it is not."""
    attempts = [one.removeprefix(_ATTEMPT) for one in variables if one.startswith(_ATTEMPT)]
    return until is not None and any(one.isdigit() and int(one) > until for one in attempts)


def alive(process: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return condition(process) not in "ZX"


def condition(process: int) -> str:
    """Return a process's state letter from proc(5), such as ``S`` or ``T``; ``X`` when it is gone."""
    try:
        return _fields(process)[0].decode()
    except OSError:
        return "X"


def _fields(process: int) -> list[bytes]:
    """Return the fields of a process's ``stat`` from the third on, its state; see proc(5).

    Raises:
        OSError: It is gone.
    """
    # The program's name before them, in parentheses, may contain any bytes.
    return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()


def _environment(process: int) -> bytes:
    """Return the environment that a process was started with, each entry with a NUL at its end.

    Raises:
        OSError: The process is gone, or belongs to another user.
    """
    for _ in range(50):
        found = Path(f"/proc/{process}/environ").read_bytes()
        if found or _never_has_one(process):
            break
        # Within execve(2), it has no environment until the new one is there.
        time.sleep(0.001)
    return found


def _never_has_one(process: int) -> bool:
    fields = _fields(process)
    return fields[0] in b"ZX" or bool(int(fields[6]) & _PF_KTHREAD)


def identity(process: int) -> str | None:
    """Return a text that no other process of this node ever has; None when the process is gone.

    Returns:
        The process id, its start in ticks since boot, and the boot id.
    """
    try:
        fields = _fields(process)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else f"{process} {int(fields[19])} {boot}"


def is_alive(named: str) -> bool:
    """Whether the process with this ``identity`` runs."""
    process = named.partition(" ")[0]
    return process.isdecimal() and identity(int(process)) == named


def environment_of(process: int) -> dict[str, str] | None:
    """Return the environment that a process was started with; None when it is gone."""
    try:
        text = _environment(process).decode("utf-8", "replace")
    except OSError:
        return None
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def end(processes: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, and ignore those that are gone."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def end_all(job: str, *, until: int | None = None) -> bool:
    """Kill every process of a job on this node, and wait until they are gone. Return whether there were any.

    This repeats because a launcher may still be starting new ones. ``of_job`` describes the arguments.
    """
    deadline, found = time.monotonic() + 10.0, False
    while processes := of_job(job, until=until):
        found = True
        end(processes, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found


def allow_files(limit: int | None = None) -> None:
    """Raise this process's limit of open files to ``limit`` or its hard limit; by default to the latter."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit is None:
        limit = _MANY_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < limit:
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def usage(processes: Iterable[int]) -> dict[int, tuple[float, int]]:
    """Return the usage of processes: {process: (CPU seconds, resident bytes)}."""
    return {process: (stat.cpu_s, stat.resident) for process, stat in _stats(processes)}


def usage_with_children(processes: Iterable[int]) -> dict[int, tuple[float, int]]:
    """Return the usage of processes with all their descendants, in the form of ``usage``.

    The CPU seconds of ended processes count once their parent has waited for them. Shared memory, such as
    the pages after a fork, counts once per process.
    """
    every = dict(_stats(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()))
    below: dict[int, list[int]] = {}
    for process, stat in every.items():
        below.setdefault(stat.parent, []).append(process)
    found = {}
    for process in processes:
        if process not in every:
            continue
        tree = [process]
        for one in tree:
            tree += below.get(one, ())
        stats = [every[one] for one in tree]
        found[process] = (
            sum(stat.cpu_s + stat.waited_s for stat in stats),
            sum(stat.resident for stat in stats),
        )
    return found


class _Stat(NamedTuple):
    """A process's figures from proc(5); times in CPU seconds, memory in bytes."""

    parent: int
    cpu_s: float
    waited_s: float
    resident: int


def _stats(processes: Iterable[int]) -> Iterator[tuple[int, _Stat]]:
    """Yield the processes that exist, each with its figures."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = _fields(process)
            own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            yield process, _Stat(int(fields[1]), own / ticks, waited / ticks, int(fields[21]) * page)
