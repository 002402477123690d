# SPDX-License-Identifier: GPL-3.0-or-later
"""Which training jobs run on a node.

As long as a job's agent lives, it holds a lock in the job's directory, which can be seen from outside of the
container (trainer/rdm_job/directory.py). This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import fcntl
import os
import stat
from typing import List


def running_jobs(directory: str, node: str) -> List[str]:
    """Return the names of the jobs that run on a node, sorted.

    Args:
        directory: the directory of all jobs; where it cannot be read, none runs.
        node: the node's name in the inventory, since nodes may share the directory.
    """
    try:
        with os.scandir(directory) as entries:
            jobs = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(job.name for job in jobs if _is_locked(os.path.join(job.path, f".agent.{node}.lock")))


def _is_locked(path: str) -> bool:
    """Return whether somebody else has a file for himself alone."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # An agent that starts in this very moment tries again.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(file)
    return False
