# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that are the same on every node, for commands that one node starts on the others over ssh.

pdsh and mpirun run one command everywhere, but on bare hosts the paths of Python and the jobs may differ
(``%n`` in the inventory). So each node's agent keeps a directory for the job in ``/tmp``, which nodes do not
share, with links to the node's own paths.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import sys
import time
from pathlib import Path

from rdm_core.errors import TrainerError
from rdm_job import processes

_ROOT = Path("/tmp")  # noqa: S108  # ours alone: made with mode 0700, or refused
_PREFIX = "rdm-"
_LOCK = "lock"
_FRESH_S = 60.0
"""A directory younger than this, in seconds, is kept: its agent may not hold the lock yet."""


class Links:
    """A job's directory of links on this node."""

    def __init__(self, job: str, root: Path = _ROOT) -> None:
        self.path = root / f"{_PREFIX}{job}"
        self.job = self.path / "job"
        self._environment = self.path / "environment"
        self._lock = -1

    @property
    def python(self) -> str:
        """The Python of this process, by a path that every node has."""
        mine = Path(sys.executable)
        if sys.prefix == sys.base_prefix or not mine.is_relative_to(sys.prefix):
            return sys.executable  # an image's, the same everywhere
        return str(self._environment / mine.relative_to(sys.prefix))

    def make(self, directory: Path, exports: Path) -> None:
        """Make or repair the links, and remove those of jobs whose agents were killed.

        Args:
            directory: The job's on this node.
            exports: The file that DeepSpeed reads from its working directory.

        Raises:
            TrainerError: The directory belongs to, or is open to, another user.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise TrainerError(f"{self.path} is not this user's alone; remove it.")
        self._take_lock()
        for link, target in (
            (self.job, directory),
            (self.path / exports.name, exports),
            (self._environment, Path(sys.prefix)),
        ):
            # Replaced atomically: nodes on one machine, as in a test, make the same links.
            partial = link.with_name(f"{link.name}.{os.getpid()}")
            partial.unlink(missing_ok=True)
            partial.symlink_to(target)
            partial.replace(link)
        self._sweep()

    def remove(self) -> None:
        """Remove the links, not their targets."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.path)
        self._release()

    def _take_lock(self) -> None:
        """Lock the directory until this process ends. flock is reliable here: ``/tmp`` is local."""
        self._release()
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _sweep(self) -> None:
        """Remove the directories of jobs that have neither an agent nor a process on this node."""
        for path in self.path.parent.glob(f"{_PREFIX}*@*"):
            with contextlib.suppress(OSError):
                found = path.lstat()
                fresh = time.time() - found.st_mtime < _FRESH_S
                if path == self.path or fresh or found.st_uid != os.getuid():
                    continue
                # Without a lock file it is not ours, or was made by an earlier version.
                lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not processes.of_job(path.name.removeprefix(_PREFIX)):
                        shutil.rmtree(path)
                finally:
                    os.close(lock)
