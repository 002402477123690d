# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a cluster on a node: one run at a time changes it, from whichever machine.

The lock is a record of the run that holds it. Nothing on the node lives as long as a run does, so the record
counts only while something shows that the run goes on: a call of it is at work here, or was within the last
minute. A run that was killed therefore locks nothing for long, and what it left at work still counts.

Two runs with the same `home` cannot be at work at once, since each holds the lock beside their inventory: the
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
"""For how long after a call of its run a lock counts, in seconds."""
LIMIT_S = 10.0
"""How long to wait for another process that takes or releases the lock, in seconds."""
_POLL_S = 0.02

ARGUMENTS: Dict[str, Any] = {
    "cluster": {"type": "str", "required": True},
    "run": {"type": "str", "required": True},
    "home": {"type": "str", "required": True},
    "leader": {"type": "dict", "required": True},
}
"""Which run wants the lock, as modules take it: the cluster, the run's mark, the mark of the inventory from
which it works, and the process that leads it."""

Holder = Dict[str, Any]
"""Who holds the lock: `run` and `leader`, as in ARGUMENTS; empty for nobody else."""


def take(wanted: Mapping[str, Any], ended: Sequence[str] = ()) -> Holder:
    """Take the lock for a run, or renew it; return who else holds it.

    Args:
        wanted: as ARGUMENTS has it.
        ended: marks of runs of which the caller knows that they have ended.

    Raises:
        OSError: no lock can be kept here.
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
    """Return who holds the lock of a cluster; empty for nobody."""
    try:
        with _opened(cluster, os.O_RDWR) as file:
            found = _read(file)
            counts = found and _counts(found, file)
            return {key: found[key] for key in ("run", "leader")} if counts else {}
    except OSError:
        return {}


def release(wanted: Mapping[str, Any]) -> None:
    """Release the lock of a run. Does nothing where the run does not hold it."""
    with contextlib.suppress(OSError), _opened(wanted["cluster"], os.O_RDWR) as file:
        if _read(file).get("run") == wanted["run"]:
            path = _path(wanted["cluster"])
            os.unlink(path)
            os.rmdir(os.path.dirname(path))


def _path(cluster: str) -> str:
    """Return the path of the file. Root's is gone after a boot."""
    uid = os.geteuid()
    directory = "/tmp/rdm-provision-{0}".format(uid) if uid else "/run/rdm-provision"  # noqa: S108 - see _open
    return os.path.join(directory, "{0}.lock".format(cluster))


@contextlib.contextmanager
def _opened(cluster: str, flags: int) -> Iterator[int]:
    """Open the file, with nobody else at it for the length of a block.

    Raises:
        OSError: there is none, or it is not this user's alone.
    """
    path = _path(cluster)
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            file = _open(path, flags)
        except FileNotFoundError:
            # Whoever released the lock has removed the directory meanwhile.
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
    """Whether the file is still there, and was not released before this process had it."""
    try:
        now = os.lstat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(file)
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)


def _read(file: int) -> Dict[str, Any]:
    """Return the record; empty where a process that was killed has left none."""
    try:
        found: Any = json.loads(os.pread(file, 1 << 16, 0))
    except ValueError:
        return {}
    whole = isinstance(found, dict) and {"run", "home", "leader", "call", "session"} <= set(found)
    return found if whole else {}


def _counts(record: Mapping[str, Any], file: int) -> bool:
    """Whether something shows that the run goes on."""
    if 0 <= time.time() - os.fstat(file).st_mtime < FRESH_S:
        return True
    if _runs(record["call"]):
        return True
    # A call of another module, such as the pull of an image, is a child of the ssh session.
    return _runs(record["session"]) and bool(_children(record["session"][0]) - set(_ancestors()))


def _session() -> Optional[List[int]]:
    """Return the ssh session that this process is in, by id and start; None for none."""
    for pid in _ancestors():
        with contextlib.suppress(OSError), open("/proc/{0}/comm".format(pid), encoding="utf-8") as stream:
            if stream.read().startswith("sshd"):
                return [pid, _started(pid)]
    return None


def _ancestors() -> Iterator[int]:
    """Yield this process and those that it descends from, as far as they can be seen."""
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
    """Return a process's parent, and when it began in ticks since boot; zeros for none, or a dead one."""
    try:
        with open("/proc/{0}/stat".format(pid), "rb") as stream:
            # The name, in parentheses, may hold anything.
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    return (0, 0) if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))
