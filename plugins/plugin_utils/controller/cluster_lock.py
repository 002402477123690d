# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a cluster: one run at a time changes it, and ends the processes that a dead run has left.

The lock is the file ``.rdm/lock`` next to the inventory. All processes of a run hold a shared flock on it:
``rdm-provision``, its ansible-playbook, and the workers that this forks, which inherit it. So the lock marks
the processes of a run, and the kernel shows who holds it (the line ``lock:`` in ``/proc/PID/fdinfo``).
Programs that they start, such as ssh and its masters, do not inherit it.

The file names the process that leads the run. If that process is dead and the file still locked, the next run
ends exactly the processes that hold it, and takes it: a worker of a killed run can wait forever for a
semaphore that died with its holder. A second lock guards taking the lock, and its release by the leader, so
that the file always names the holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.constants import STATE_DIR

TIMEOUT_S = 30.0
"""Seconds to wait for another process that takes or releases the lock."""
RELEASE_S = 0.5
"""Seconds for which short-lived processes may hold the lock of a run that has ended."""
ORDERLY_S = 3.0
"""Seconds between SIGTERM and SIGKILL for a process of a dead run."""
KILLED_S = 30.0
"""Seconds to wait until the kernel has removed a killed process."""
_POLL_S = 0.05
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Busy(Exception):  # noqa: N818
    """The lock cannot be taken.

    Attributes:
        hint: what to do, in the imperative.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Process(NamedTuple):
    """A process of this machine.

    Attributes:
        pid: its process id.
        started: its start in the kernel's ticks since boot, since process ids are reused.
    """

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process with this id, which may be dead."""
        return cls(pid, _started(pid) or 0)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return _started(self.pid) == self.started


class Leader(NamedTuple):
    """The process that leads a run, as the lock file names it; the run ends with it.

    Attributes:
        what: its command, such as ``rdm-provision up``.
        pid: its process id, valid on ``host`` in the process namespace ``space`` only.
        started: as in :class:`Process`.
        user: the name of its user.
        since: when it took the lock, in seconds since 1970.
    """

    what: str
    pid: int
    started: int
    user: str
    host: str
    space: str
    since: float = 0.0

    @classmethod
    def here(cls, what: str) -> Leader:
        """Return this process as the leader of a run."""
        me = Process.of(os.getpid())
        return cls(what, *me, _user(), socket.gethostname(), _space(), time.time())

    @classmethod
    def read(cls, record: Any) -> Leader | None:
        """Return the leader of a record; None if another version wrote it."""
        try:
            return cls(**record)
        except TypeError:
            return None

    @property
    def elsewhere(self) -> bool:
        """Whether it is on another host or in another process namespace."""
        return (self.host, self.space) != (socket.gethostname(), _space())

    @property
    def alive(self) -> bool:
        """Whether it still runs; valid only if it is not elsewhere."""
        return Process(self.pid, self.started).alive

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host != socket.gethostname() else ""
        return f"{self.what} (process {self.pid} of {self.user}{where})"


def state_folder(home: Path) -> Path:
    """Create and return a cluster's ``.rdm``, with a ``.gitignore`` that keeps secrets out of commits.

    Raises:
        OSError: it cannot be created.
    """
    folder = home / STATE_DIR
    folder.mkdir(mode=0o700, exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder


def take(home: Path, what: str, timeout: float = TIMEOUT_S) -> int | None:
    """Take the lock of a cluster.

    Processes that a dead run has left are ended first. Programs that a run starts share its lock.

    Args:
        home: the inventory's directory.
        what: the command, for the message of another run.
        timeout: seconds to wait for a run that is about to end.

    Returns:
        The descriptor of the lock file; None if no lock is possible: the directory is not writable, or its
        file system has no locks.

    Raises:
        Busy: another run holds it.
    """
    try:
        path = state_folder(home) / "lock"
        file = _open(path)
    except PermissionError:
        folder = home / STATE_DIR
        if not os.path.exists(folder):
            return None
        hint = "work as that user, or with an inventory of your own"
        raise Busy(f"{folder} belongs to another user, so a run of theirs cannot be seen", hint) from None
    except OSError:
        return None
    try:
        with brief_lock(_gate(path), timeout):
            if not _leads_us(_leader(file)):
                if not _alone(file):
                    _clear(file, path)
                _write(file, json.dumps(Leader.here(what)._asdict()).encode() + b"\n")
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(file)
        if isinstance(error, TimeoutError):
            hint = "wait for it to end, and try again"
            raise Busy(f"another run is taking the lock of this cluster, {path}", hint) from None
        if isinstance(error, OSError):
            if error.errno in _NO_LOCKS:
                return None
            hint = "make it writable, with some bytes of room"
            raise Busy(f"the lock of this cluster, {path}, cannot be taken: {error.strerror}", hint) from None
        raise
    return file


def join(home: Path) -> None:
    """Share the lock that this process's parent holds; it is kept across exec.

    The caller has to check afterwards that the parent is still alive.

    Raises:
        OSError: another run is taking the lock.
    """
    file = _open(home / STATE_DIR / "lock")
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.set_inheritable(file, True)


def held(home: Path) -> list[int]:
    """Return the descriptors of this process that hold the lock of a cluster."""
    with contextlib.suppress(OSError):
        return list(_descriptors(os.getpid(), (home / STATE_DIR / "lock").stat(), locked=True))
    return []


def leader(home: Path) -> Leader | None:
    """Return the leader of this process's run; None if the process holds no lock of the cluster."""
    files = held(home)
    return _leader(files[0]) if files else None


def homes(variables: Mapping[str, Any]) -> list[Path]:
    """Return the directories of the inventories, sorted."""
    sources = [Path(str(source)) for source in variables.get("ansible_inventory_sources") or []]
    return sorted({source if source.is_dir() else source.parent for source in sources if source.exists()})


def give_back(home: Path) -> None:
    """Release the lock of a cluster, if this process holds it."""
    files = held(home)
    if not files:
        return
    with contextlib.suppress(OSError, TimeoutError), brief_lock(_gate(home / STATE_DIR / "lock"), TIMEOUT_S):
        leader = _leader(files[0])
        if leader is not None and leader.pid == os.getpid():
            _write(files[0], b"")
    for file in files:
        os.close(file)


@contextlib.contextmanager
def brief_lock(path: Path, timeout: float) -> Iterator[None]:
    """Hold an exclusive lock on a file during a block.

    Args:
        path: the file; created if it is missing.
        timeout: seconds to wait for another process.

    Raises:
        TimeoutError: another process holds the lock for longer.
        OSError: the file cannot be opened, or its file system has no locks.
    """
    file = _open(path)
    try:
        if not _alone(file, timeout):
            raise TimeoutError(f"{path} is held by another process")
        yield
    finally:
        os.close(file)


def process_space() -> str:
    """Return an identifier of this host and process namespace, outside which a process id means nothing."""
    return hashlib.sha256(f"{socket.gethostname()}\0{_space()}".encode()).hexdigest()[:16]


# --- processes of a run ------------------------------------------------------------------------------------


def having(file: int, *, locked: bool) -> set[int]:
    """Return the other processes that have a file or pipe open.

    Only root sees processes of other users.

    Args:
        file: a descriptor of it in this process.
        locked: only processes that hold a lock on it.
    """
    wanted = os.fstat(file)
    processes = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return {
        pid
        for pid in processes - {os.getpid()}
        if next(_descriptors(pid, wanted, locked=locked), None) is not None
    }


def end(left: Callable[[], set[int]]) -> set[int]:
    """End processes: SIGTERM, then SIGKILL.

    A worker leads a process group, so the ssh that it started is killed with it.

    Args:
        left: returns the processes that still run.

    Returns:
        The processes that did not end.
    """
    for number, timeout in ((signal.SIGTERM, ORDERLY_S), (signal.SIGKILL, KILLED_S)):
        deadline = time.monotonic() + timeout
        signalled: set[int] = set()
        while there := left():
            for pid in there - signalled:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if number == signal.SIGKILL and os.getpgid(pid) == pid:
                        os.killpg(pid, number)
                    else:
                        os.kill(pid, number)
            signalled |= there
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        else:
            return set()
    return there


def _clear(file: int, path: Path) -> None:
    """Take over the lock of a dead run; Busy if the run is alive or its processes cannot be ended."""
    leader = _leader(file)
    if leader is None or leader.elsewhere:
        name = "another run" if leader is None else str(leader)
        raise Busy(f"{name} is working on this cluster", "it cannot be seen from here: wait for it to end")
    if leader.alive:
        raise Busy(f"{leader} is working on this cluster", "wait for it to end, or stop it with Ctrl-C")
    # A child that the leader forked holds the lock too, until its exec.
    if _alone(file, RELEASE_S):
        return
    remaining = end(lambda: having(file, locked=True))
    # The kernel closes the files of a dying process a moment before it releases their locks.
    if not _alone(file, RELEASE_S if remaining else KILLED_S):
        pids = ", ".join(map(str, sorted(remaining)))
        who = f"process {pids}" if pids else "a process that this user cannot see"
        run = leader if leader.pid else "an earlier run"
        raise Busy(
            f"{run} has ended, but {who} of it still works on this cluster and cannot be ended",
            f"end it as root, who sees it with: fuser -v {path}",
        )


def _leads_us(leader: Leader | None) -> bool:
    """Return whether this process descends from the leader, and so belongs to its run."""
    if leader is None or leader.elsewhere or not leader.pid or not leader.alive:
        return False
    pid = os.getppid()
    while pid > 1 and pid != leader.pid:
        pid = _parent(pid)
    return pid == leader.pid


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def _leader(file: int) -> Leader | None:
    """Return the leader in the lock file: pid 0 if the file is empty, None if it cannot be parsed."""
    text = os.pread(file, 4096, 0)
    if not text:
        return Leader("", 0, 0, "", socket.gethostname(), _space())
    try:
        return Leader.read(json.loads(text))
    except ValueError:
        return None


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _gate(path: Path) -> Path:
    return path.with_name("lock.taking")


def _alone(file: int, timeout: float = 0.0) -> bool:
    """Try to lock the file exclusively for some seconds; return whether that worked."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)


def _write(file: int, text: bytes) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, text, 0)


def _descriptors(pid: int, wanted: os.stat_result, *, locked: bool) -> Iterator[int]:
    """Yield the descriptors of a process that are open on a file, or with `locked` those that lock it."""
    process = Path("/proc", str(pid))
    with contextlib.suppress(OSError):
        for name in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                found = os.stat(process / "fd" / name)
                if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
                    continue
                if not locked or "\nlock:" in (process / "fdinfo" / name).read_text():
                    yield int(name)


def _started(pid: int) -> int | None:
    """Return the start of a process in ticks since boot; None if there is none, or it is a zombie."""
    try:
        # The name, in parentheses, may contain spaces and parentheses.
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _space() -> str:
    """Return the process namespace and the boot ID: every host's first namespace has the same name."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{os.readlink('/proc/self/ns/pid')} {boot}"
    return ""


def _user() -> str:
    import pwd

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())
