# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a cluster on a node: one run at a time changes it, from any machine.

The lock is a record of the run that holds it. No process on the node lives as long as a run, so the record is
valid only while there are signs of the run: one of its calls is active here, or was within the last minute.
So a killed run keeps the lock only as long as its remaining processes live.

Two runs with the same `home` cannot be active at once, since each holds the lock of their inventory: the
later one takes over from the earlier one.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

FRESH_S = 60.0
"""Seconds that a lock is valid after the last call of its run."""
LIMIT_S = 10.0
"""Seconds to wait for another process that takes or releases the lock."""
_POLL_S = 0.02

ARGUMENTS: Dict[str, Any] = {
    "cluster": {"type": "str", "required": True},
    "run": {"type": "str", "required": True},
    "home": {"type": "str", "required": True},
    "leader": {"type": "dict", "required": True},
}
"""The module options that name a run: the cluster, the run's ID, the ID of its inventory, and the process
that leads it."""

Holder = Dict[str, Any]
"""The holder of the lock: `run` and `leader`, as in ARGUMENTS; empty for none, or for this run."""


def take(wanted: Mapping[str, Any], ended: Sequence[str] = ()) -> Holder:
    """Take the lock for a run, or renew it; return its holder if another run has it.

    Args:
        wanted: the run, as in ARGUMENTS.
        ended: IDs of runs that the caller knows to have ended.

    Raises:
        OSError: the lock's file cannot be written.
    """
    with _opened(wanted["cluster"], os.O_RDWR | os.O_CREAT) as file:
        found = _read(file)
        ours = not found or found["run"] in (wanted["run"], *ended) or found["home"] == wanted["home"]
        if not ours and _counts(found, file):
            return {key: found[key] for key in ("run", "leader")}
        pid = os.getpid()
        record = {
            **{key: wanted[key] for key in ("run", "home", "leader")},
            "call": [pid, _started(pid)],
            "session": _session(),
        }
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(record).encode(), 0)
    return {}


def holder(cluster: str) -> Holder:
    """Return the holder of a cluster's lock; empty for none."""
    try:
        with _opened(cluster, os.O_RDWR) as file:
            found = _read(file)
            counts = found and _counts(found, file)
            return {key: found[key] for key in ("run", "leader")} if counts else {}
    except OSError:
        return {}


def release(wanted: Mapping[str, Any]) -> None:
    """Release the lock of a run, if it holds it."""
    with contextlib.suppress(OSError), _opened(wanted["cluster"], os.O_RDWR) as file:
        if _read(file).get("run") == wanted["run"]:
            path = _path(wanted["cluster"])
            os.unlink(path)
            os.rmdir(os.path.dirname(path))


def _path(cluster: str) -> str:
    """Return the path of the lock's file. Root's is gone after a boot."""
    uid = os.geteuid()
    directory = "/tmp/rdm-provision-{0}".format(uid) if uid else "/run/rdm-provision"  # noqa: S108 - see _open
    return os.path.join(directory, "{0}.lock".format(cluster))


@contextlib.contextmanager
def _opened(cluster: str, flags: int) -> Iterator[int]:
    """Open the file, locked exclusively for the length of a block.

    Raises:
        OSError: there is no such file, or other users may access it.
    """
    path = _path(cluster)
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            file = _open(path, flags)
        except FileNotFoundError:
            # The process that released the lock has removed the directory meanwhile.
            if flags & os.O_CREAT and time.monotonic() < deadline:
                continue
            raise
        try:
            if _alone(file) and _is_at(file, path):
                yield file
                return
        finally:
            os.close(file)
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "is held by another process", path)
        time.sleep(_POLL_S)


def _open(path: str, flags: int) -> int:
    directory = os.path.dirname(path)
    if flags & os.O_CREAT:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    now = os.lstat(directory)
    if not stat.S_ISDIR(now.st_mode) or now.st_uid != os.geteuid():
        raise PermissionError(errno.EACCES, "belongs to another user", directory)
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _alone(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, path: str) -> bool:
    """Whether the path still leads to this file, which was not released meanwhile."""
    try:
        now = os.lstat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(file)
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)


def _read(file: int) -> Dict[str, Any]:
    """Return the record; empty if a killed process left none."""
    try:
        found: Any = json.loads(os.pread(file, 1 << 16, 0))
    except ValueError:
        return {}
    whole = isinstance(found, dict) and {"run", "home", "leader", "call", "session"} <= set(found)
    return found if whole else {}


def _counts(record: Mapping[str, Any], file: int) -> bool:
    """Whether there are signs that the run is still active."""
    if 0 <= time.time() - os.fstat(file).st_mtime < FRESH_S:
        return True
    if _runs(record["call"]):
        return True
    # A call of another module, such as the pull of an image, is a child of the ssh session.
    return _runs(record["session"]) and bool(_children(record["session"][0]) - set(_ancestors()))


def _session() -> Optional[List[int]]:
    """Return the id and start time of this process's ssh session; None for none."""
    for pid in _ancestors():
        with contextlib.suppress(OSError), open("/proc/{0}/comm".format(pid), encoding="utf-8") as stream:
            if stream.read().startswith("sshd"):
                return [pid, _started(pid)]
    return None


def _ancestors() -> Iterator[int]:
    """Yield this process and its visible ancestors."""
    pid = os.getpid()
    while pid > 1:
        yield pid
        pid = _stat(pid)[0]


def _children(parent: int) -> Set[int]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid for pid in pids if _stat(pid)[0] == parent}


def _runs(process: Optional[Sequence[int]]) -> bool:
    return bool(process) and _started(process[0]) == process[1] > 0  # type: ignore[index]


def _started(pid: int) -> int:
    return _stat(pid)[1]


def _stat(pid: int) -> Tuple[int, int]:
    """Return a process's parent, and its start in ticks since boot; zeros if it has ended."""
    try:
        with open("/proc/{0}/stat".format(pid), "rb") as stream:
            # The name, in parentheses, may contain spaces.
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    return (0, 0) if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))
