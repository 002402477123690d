# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of jobs that are over, taken away from this node.

A directory is renamed before it is deleted: what is left when this is killed is no job any more, and the
next removal takes it away. Where nodes share the directory of all jobs, they do this at the same time.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdm_core.errors import TrainerError
from rdm_job.directory import JobDirectory, jobs_root
from rdm_job.verbs import state

__all__ = ["LEFT", "remove"]

LEFT = ".removed-"
"""How the name of what is being removed begins: ``.removed-JOB.IDENTITY``."""


def remove(names: Sequence[str], *, dry_run: bool = False) -> dict[str, Any]:
    """Remove the directories of jobs that have ended, and nothing that a link in them leads to.

    What a removal that was killed has left goes first, whichever the job.

    Args:
        names: The jobs; one that is not here is left out.
        dry_run: Say what would be removed.

    Returns:
        ``removed``: ``job``, ``bytes`` on the disk of each, and ``identity``, the same on all nodes that
        share this directory and on no others; ``kept``: ``job`` and the ``reason``.
    """
    removed: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for path in (*sorted(jobs_root().glob(f"{LEFT}*")), *(jobs_root() / name for name in names)):
        name, identity = _left(path) or (path.name, "")
        try:
            if not path.is_dir():
                continue
            if path.is_symlink():
                raise TrainerError(f"{path} is a link")
            if identity:
                size = _size(path)
            else:
                path, identity, size = _taken(path, dry_run=dry_run)
        except (TrainerError, OSError) as error:
            gone = isinstance(error, FileNotFoundError) and str(error.filename) == str(path)
            # Another node that shares it may have been faster.
            if not gone and os.path.lexists(path):
                kept.append({"job": name, "reason": str(error).rstrip(".")})
            continue
        try:
            if not dry_run:
                _delete(path)
            removed.append({"job": name, "bytes": size, "identity": identity})
        except OSError as error:
            kept.append({"job": name, "reason": str(error).rstrip(".")})
    return {"removed": removed, "kept": kept}


def _left(path: Path) -> tuple[str, str] | None:
    """Return the job and the identity of what a removal has left; None when this is none."""
    if not path.name.startswith(LEFT):
        return None
    name, _, identity = path.name.removeprefix(LEFT).rpartition(".")
    return name or identity, identity


def _taken(path: Path, *, dry_run: bool) -> tuple[Path, str, int]:
    """Give the directory of a job that has ended its last name; return that, its identity and its size.

    Raises:
        TrainerError: It is at work.
        OSError: It cannot be read or renamed, or has gone.
    """
    found = state(path.name)["job"]
    job = JobDirectory.named(path.name)
    if not found["ended"]:
        raise TrainerError(f"it is {found['state']}")
    made = (path / "job.json").stat()
    identity = f"{made.st_ino:x}-{made.st_mtime_ns:x}"
    # While it is held, nobody can start an agent that goes on with the job; later, nobody finds the job.
    lock = job.lock()
    if lock is None:
        raise TrainerError("its agent is still at work")
    with lock:
        size = _size(path)
        if not dry_run:
            path = path.rename(path.with_name(f"{LEFT}{path.name}.{identity}"))
        return path, identity, size


def _size(path: Path) -> int:
    """Return what a directory takes of the disk, in bytes, as ``du`` does."""
    found = path.lstat().st_blocks
    for folder, directories, files in os.walk(path):
        for name in (*directories, *files):
            try:
                found += Path(folder, name).lstat().st_blocks
            except FileNotFoundError:
                continue  # another node removes it
    return 512 * found


def _delete(path: Path) -> None:
    """Remove a directory that others may be removing as well."""

    def failed(_call: Any, _name: str, problem: Any) -> None:
        if problem[1].errno not in (errno.ENOENT, errno.ESTALE):
            raise problem[1]

    shutil.rmtree(path, onerror=failed)
