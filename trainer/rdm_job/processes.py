# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of a job on this node, told from all others by a variable in their environment."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "JOB_VARIABLE",
    "alive",
    "allow_files",
    "condition",
    "end",
    "environment_of",
    "identity",
    "is_alive",
    "of_job",
    "usage",
    "usage_with_children",
]

JOB_VARIABLE = "RDM_JOB_ID"

_MANY_FILES = 1 << 20


def of_job(job: str, *, apart_from: Iterable[int] = ()) -> list[int]:
    """Return the processes that run for a job, also those that a launcher started over ssh.

    Args:
        job: What they carry, ``Request.job_id``.
        apart_from: Processes that do not count; this one never does.
    """
    left_out = {os.getpid(), *apart_from}
    wanted = f"{JOB_VARIABLE}={job}".encode()
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) in left_out:
            continue
        with contextlib.suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0") and alive(int(path.name)):
                found.append(int(path.name))
    return found


def alive(process: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    return condition(process) not in "ZX"


def condition(process: int) -> str:
    """Return a process' state as proc(5) names it, such as ``S`` or ``T``; ``X`` when it is gone."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def identity(process: int) -> str | None:
    """Return what tells a process from all others of this node before and after it; None when it is gone.

    Returns:
        Its number, its start in ticks since the machine's, and the machine's start.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else f"{process} {int(fields[19])} {boot}"


def is_alive(named: str) -> bool:
    """Whether the process runs that ``identity`` has named so."""
    process = named.partition(" ")[0]
    return process.isdecimal() and identity(int(process)) == named


def environment_of(process: int) -> dict[str, str] | None:
    """Return the environment that a process was started with; None when it is gone."""
    try:
        text = Path(f"/proc/{process}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def end(processes: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes, some of which may be gone."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def end_all(job: str, *, apart_from: Iterable[int] = (), timeout: float = 10.0) -> bool:
    """Kill every process of a job on this node, and wait until they are gone. Return whether there were any.

    New ones may come while the old ones end, when a launcher is just starting them.
    """
    deadline, found = time.monotonic() + timeout, False
    while processes := of_job(job, apart_from=apart_from):
        found = True
        end(processes, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found


def allow_files(wanted: int | None = None) -> None:
    """Allow this process so many open files, as far as it may; without a number, as many as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted is None:
        wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def usage(processes: Iterable[int]) -> dict[int, tuple[float, int]]:
    """Return what processes have used: {process: (CPU seconds, resident bytes)}."""
    return {process: (stat.cpu_s, stat.resident) for process, stat in _stats(processes)}


def usage_with_children(processes: Iterable[int]) -> dict[int, tuple[float, int]]:
    """Return what processes and all below them have used, as ``usage`` does.

    CPU seconds of those that have ended count where their parent has waited for them. What several have in
    memory together, such as the pages of a fork, counts for each.
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
    """What proc(5) says of a process; times in CPU seconds, memory in bytes."""

    parent: int
    cpu_s: float
    waited_s: float
    resident: int


def _stats(processes: Iterable[int]) -> Iterator[tuple[int, _Stat]]:
    """Yield processes that are there, and what is said of them."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            # A program's name, in parentheses, may have any bytes.
            fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
            own, waited = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            yield process, _Stat(int(fields[1]), own / ticks, waited / ticks, int(fields[21]) * page)
