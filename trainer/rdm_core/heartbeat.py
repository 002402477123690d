# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank's heartbeat for its node's agent: a mark that changes all the time, and a record every second or so.

Rank and agent share the mark as a memory-mapped file: setting it costs no system call, and it stays readable
when the rank hangs. The record is JSON, replaced as a whole. No torch here.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_core.atomic_file import write_atomically

HEARTBEAT_VARIABLE = "RDM_HEARTBEAT"
"""The environment variable with the record's path; the mark is in the same directory."""
FORMER_VARIABLE = "RDM_PACE"
"""Its name before 0.6, which this release still sets for programs that read it."""
NODE_VARIABLE = "RDM_NODE"
"""The environment variable with the node's name, for a job's agent and the processes that it starts."""
_MARK = struct.Struct("<qd")
"""The step that was begun, and since when the rank waits for others (s since 1970; 0 if it does not)."""
_EACH_S = 1.0


class HeartbeatWriter:
    """Writes a rank's mark and record. Without a path, it does nothing.

    Args:
        path: The record's path; by default ``$RDM_HEARTBEAT``.
    """

    def __init__(self, path: Path | None = None) -> None:
        given = path or os.environ.get(HEARTBEAT_VARIABLE)
        self._path = Path(given) if given else None
        self._mark: mmap.mmap | None = None
        self._iteration = 0
        self._depth = 0
        self._written = 0.0
        self._reported = (0, 0.0, starved())
        self.waited = 0.0
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._mark = _mapped(self._path)
        self._set(0.0)

    def step(self, iteration: int) -> None:
        """Mark the start of a step."""
        self._iteration = iteration
        self._set(0.0)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark that this rank waits for others in this context; ``waited`` adds up the seconds."""
        self._depth += 1
        if self._depth > 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        began = time.perf_counter()
        self._set(time.time())
        try:
            yield
        finally:
            self._depth -= 1
            self.waited += time.perf_counter() - began
            self._set(0.0)

    @property
    def is_waiting(self) -> bool:
        """This is called within :meth:`waiting`."""
        return self._depth > 0

    @property
    def is_due(self) -> bool:
        """It is time for a new record."""
        return self._path is not None and time.monotonic() - self._written >= _EACH_S

    def write(self, **record: Any) -> None:
        """Replace the record; see ``rdm_log.peers.RankHeartbeat`` for its keys.

        Adds the times per step that the rank waited for others and for a processor, unless they are given.
        """
        if self._path is None:
            return
        self._written = time.monotonic()
        previous, self._reported = self._reported, (self._iteration, self.waited, starved())
        steps, *waits = (now - before for now, before in zip(self._reported, previous, strict=True))
        record = {
            **dict(zip(("waited_s", "starved_s"), (wait / max(1, steps) for wait in waits), strict=True)),
            **record,
        }
        # A full disk must not end a training.
        with contextlib.suppress(OSError):
            _replace(self._path, {"time": time.time(), **record})

    def built(self, shape: Mapping[str, Any]) -> None:
        """Write what this rank has built, once, by the names of the job info; see ``rdm_job.info``."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                _replace(_shape_of(self._path), {key: str(value) for key, value in shape.items()})

    @property
    def is_active(self) -> bool:
        """It has a path."""
        return self._path is not None

    @property
    def iteration(self) -> int:
        """The step that was begun."""
        return self._iteration

    def hung(self, groups: Sequence[Sequence[Any]]) -> None:
        """Write how far this rank has come in its process groups, or an empty list when it goes on.

        Args:
            groups: See ``rdm_log.peers.GroupState``.
        """
        if self._path is not None:
            with contextlib.suppress(OSError):
                _replace(_collectives_of(self._path), {"iteration": self._iteration, "groups": groups})

    def _set(self, since: float) -> None:
        if self._mark is not None:
            _MARK.pack_into(self._mark, 0, self._iteration, since)


def __getattr__(name: str) -> Any:
    if name != "Pace":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    notice = "rdm_core.heartbeat.Pace is called HeartbeatWriter now; the next release does not know it"
    warnings.warn(notice, DeprecationWarning, stacklevel=2)
    return HeartbeatWriter


def starved() -> float:
    """Return the seconds that this process's threads were ready while others had the processor, summed up.

    Adds the steal time of the processor that lost most to other virtual machines. Source: the second field of
    ``schedstat`` (Documentation/scheduler/sched-stats.rst) and ``steal`` of ``/proc/stat`` (proc_stat(5)). It
    is 0 if the kernel counts neither.
    """
    delays, stolen = 0, 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        # A thread may have ended.
        with contextlib.suppress(OSError, IndexError):
            delays += int(task.read_text().split()[1])
    with contextlib.suppress(OSError):
        lines = Path("/proc/stat").read_text().splitlines()
        rows = [line.split() for line in lines if line.startswith("cpu") and line[3].isdigit()]
        stolen = max((int(row[8]) for row in rows if len(row) > 8), default=0)
    return delays / 1e9 + stolen / os.sysconf("SC_CLK_TCK")


def _replace(path: Path, record: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(record) + "\n")


def _shape_of(path: Path) -> Path:
    return path.with_suffix(".shape")


def _collectives_of(path: Path) -> Path:
    return path.with_suffix(".collectives")


def _mark_of(path: Path) -> Path:
    return path.with_suffix(".mark")


def _mapped(path: Path) -> mmap.mmap:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _mark_of(path).open("wb+") as file:
        file.truncate(_MARK.size)
        return mmap.mmap(file.fileno(), _MARK.size)


def read(path: Path) -> tuple[dict[str, Any], int, float]:
    """Return a rank's record, the step that it has begun, and since when it waits (0.0 if it does not).

    Raises:
        OSError: There is no mark: the rank has not begun, or runs another program.
    """
    iteration, since = _MARK.unpack(_mark_of(path).read_bytes()[: _MARK.size].ljust(_MARK.size, b"\0"))
    record: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        record = found if isinstance(found, dict) else {}
        if "own_s" in record:  # its former name
            record["compute_s"] = record.pop("own_s")
    return record, iteration, since


def shape(path: Path) -> dict[str, str]:
    """Return what a rank has built; empty until it has written that."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_shape_of(path).read_text())
        return found if isinstance(found, dict) else {}
    return {}


def collectives(path: Path, iteration: int) -> list[Any]:
    """Return how far a rank has come in its process groups; empty unless it hangs in this step."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(_collectives_of(path).read_text())
        return list(found["groups"]) if found["iteration"] == iteration else []
    return []
