# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the training jobs that run on a node.

A job's agent holds a lock in the job's directory while it lives, which is visible outside the container.
Where the file system has no locks, the file names its process: see trainer/rdm_job/agent_lock.py. This runs
on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from typing import List, Set

# A line such as `3: FLOCK  ADVISORY  WRITE 812 08:01:131087 0 EOF`. Locks that other nodes hold over NFS are
# not listed.
_HELD_HERE = re.compile(r"^\d+: FLOCK +ADVISORY +WRITE +\d+ +[0-9a-f]+:[0-9a-f]+:(\d+) ", re.MULTILINE)
_NUMBERS = re.compile(r"^NSpid:\s*(.+)$", re.MULTILINE)
_WIDTH = 80
_AGENT = re.compile(r"\.agent\.(.+)\.lock")


def running_jobs(directory: str, node: str, kernel_locks: str = "/proc/locks") -> List[str]:
    """Return the names of the jobs that run on a node, sorted.

    The node's name in the inventory may have changed since a job was started. So an agent with another name
    counts as well, if it is a process of this node.

    Args:
        directory: the directory of all jobs; if it cannot be read, none runs.
        node: the node's name in the inventory; nodes may share the directory.
        kernel_locks: the kernel's list of locks that processes of this node hold.
    """
    try:
        with os.scandir(directory) as entries:
            jobs = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        with open(kernel_locks, encoding="ascii", errors="replace") as stream:
            here = {int(inode) for inode in _HELD_HERE.findall(stream.read())}
    except OSError:
        return []
    return sorted(job.name for job in jobs if _has_agent(job.path, node, here))


def jobs_of_processes() -> List[str]:
    """Return the names of the jobs whose agent is a process of this node, wherever their directories are.

    These include other clusters' jobs, in containers and on the bare host. Only root sees all of them.
    """
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        directory = os.path.join("/proc", process, "fd")
        try:
            files = [os.path.join(directory, name) for name in os.listdir(directory)]
        except OSError:  # it has ended, or is somebody else's
            continue
        for file in files:
            try:
                path, name = os.path.split(os.readlink(file))
            except OSError:
                continue
            if _AGENT.fullmatch(name) and _refuses_others(file):
                found.add(os.path.basename(path))
    return sorted(found)


def _has_agent(job: str, node: str, here: Set[int]) -> bool:
    """Return whether a job has an agent on this node."""
    if _is_locked(os.path.join(job, f".agent.{node}.lock")):
        return True
    try:
        with os.scandir(job) as entries:
            others = [
                entry.path for entry in entries if _AGENT.fullmatch(entry.name) and entry.inode() in here
            ]
    except OSError:
        return False
    return any(map(_is_locked, others))


def _is_locked(path: str) -> bool:
    """Return whether another process holds an exclusive lock on a file."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode) and _refuses_others(path, os.O_NOFOLLOW)
    except OSError:
        return False


def _refuses_others(path: str, flags: int = 0) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    except OSError:
        return False
    try:
        # This lock may collide with an agent that starts; it retries.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return _is_process(os.pread(file, _WIDTH, 0).decode(errors="replace"))
    finally:
        os.close(file)
    return False


def _is_process(named: str) -> bool:
    """Return whether a process runs that is identified by its id, its start and the machine's boot.

    The id is the one in the process's own namespace, its container's.
    """
    words = named.split()
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            if len(words) != 3 or words[2] != stream.read().strip():
                return False
    except OSError:
        return False
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(os.path.join("/proc", process, "stat"), "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
            if fields[19].decode() != words[1] or fields[0] in (b"Z", b"X"):
                continue
            with open(os.path.join("/proc", process, "status"), encoding="utf-8", errors="replace") as stream:
                numbers = _NUMBERS.search(stream.read())
        except (OSError, IndexError):  # it has ended
            continue
        if numbers and numbers.group(1).split()[-1] == words[0]:
            return True
    return False
