# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a job's agent on a node: a file that names the agent's process, locked where possible.

A job's directory may be on NFS or Lustre, where flock may be refused, needs a file that is open for writing,
and is lost with the server's lease. So only a starting agent takes the lock. To find out whether an agent is
running, read its process from the file and check it in /proc: that never waits for a file system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from rdm_job import processes

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL)
"""How file systems refuse locks: Lustre without -o flock, NFS without its lock service, and others."""
_WIDTH = 80
_SETTLE_S = 0.5
"""Without locks: how long an agent waits for another that starts on this node at the same moment."""


class AgentLock:
    """This process's lock, held until it is closed or the process ends.

    Args:
        file: A descriptor of the file, which only this process has.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def take(cls, path: Path) -> AgentLock | None:
        """Return the lock, or None when another process has it.

        Args:
            path: The file, which need not exist.
        """
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if _takes(file):
                return cls(file)
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None

    def close(self) -> None:
        """Release the lock."""
        with contextlib.suppress(OSError):
            _write(self._file, "")
        os.close(self._file)

    def __enter__(self) -> AgentLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def holder(path: Path) -> str:
    """Return the identity (``processes.identity``) of the lock's current or last holder; empty without one.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _takes(file: int) -> bool:
    mine = processes.identity(os.getpid()) or ""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        if processes.is_alive(_read(file)):
            return False
        _write(file, mine)
        time.sleep(_SETTLE_S)
        return _read(file) == mine
    _write(file, mine)
    return True


def _read(file: int) -> str:
    return os.pread(file, _WIDTH, 0).decode().strip()


def _write(file: int, text: str) -> None:
    # The length is fixed so that a reader never sees part of it.
    os.pwrite(file, f"{text:<{_WIDTH - 1}}\n".encode(), 0)
