# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs and working directories of builds, which leave nothing behind when they are interrupted."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem

WORK_PREFIX = "rdm-provision-lab."
PR_SET_PDEATHSIG = 1


@contextmanager
def unwinding() -> Iterator[None]:
    """Unwind the block at the first SIGINT or SIGTERM, and ignore later ones meanwhile.

    On a busy machine, the workers of an interrupted ansible-playbook get both at once.
    """

    def unwind(number: int, _frame: Any) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_IGN)
        if os.getpgrp() == os.getpid():  # an Ansible worker: its programs would write while it cleans up
            os.killpg(0, number)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, unwind) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def work_directory() -> Iterator[Path]:
    """Yield a directory for a build; first remove those that interrupted builds left."""
    sweep()
    work, lock = _new_directory()
    try:
        # Without root, mmdebstrap works as another user and must reach its files in here.
        work.chmod(0o711)
        yield work
    finally:
        remove_tree(work)
        os.close(lock)


def _new_directory() -> tuple[Path, int]:
    """Make a directory and lock it, again if another process has swept it before it was locked."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            lock = _lock(work)
            if work.is_dir():
                return work, lock
            os.close(lock)


def _lock(work: Path, more: int = 0) -> int:
    """Lock a directory until the returned descriptor is closed, at the latest when this process ends."""
    lock = os.open(work, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | more)
    except BlockingIOError:
        os.close(lock)
        raise
    return lock


def sweep() -> None:
    """Remove the working directories of builds that were killed."""
    for name in glob.glob(os.path.join(tempfile.gettempdir(), WORK_PREFIX + "*")):
        work = Path(name)
        # Its build may still run, or may just have removed it.
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            if work.is_symlink() or work.stat().st_uid != os.geteuid():
                continue
            lock = _lock(work, fcntl.LOCK_NB)
            try:
                remove_tree(work)
            finally:
                os.close(lock)


def remove_tree(path: Path) -> None:
    """Remove a directory, even if mmdebstrap left files of a mapped user."""
    try:
        shutil.rmtree(str(path))
    except PermissionError:
        run(["mmdebstrap", "--unshare-helper", "rm", "-rf", str(path)])
        shutil.rmtree(str(path), ignore_errors=True)


def run(argv: list[str], **env: str) -> None:
    """Run a program that ends with this process; if it fails, the error has its last lines of output.

    As root, it runs in a mount namespace of its own. Its mounts end with it, however it ends, so removing
    its directory never touches this machine's /proc.
    """
    private_mounts = ["unshare", "--mount"] if os.geteuid() == 0 else []

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    done = subprocess.run(
        [*private_mounts, *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ, LC_ALL="C.UTF-8", DEBIAN_FRONTEND="noninteractive", **env),
        preexec_fn=die_with_parent,
        check=False,
        text=True,
    )
    if done.returncode:
        raise LabProblem(f"{argv[0]} failed: {done.stdout.strip()[-800:]}")
