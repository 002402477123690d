# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes the directories of ended jobs from this node.

A directory is renamed before it is deleted: if the removal is killed, the rest is no longer a job, and the
next removal deletes it. Nodes that share the directory of all jobs do this at the same time.
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

LEFT = ".removed-"
"""The prefix of a directory that is being removed: ``.removed-JOB.IDENTITY``."""


def remove(names: Sequence[str], *, dry_run: bool = False) -> dict[str, Any]:
    """Remove the directories of ended jobs, without following links in them.

    Leftovers of interrupted removals go first, whatever the job.

    Args:
        names: The jobs; those that are not here are ignored.
        dry_run: Only report what would be removed.

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
            # Another node that shares the directory may have removed it first.
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
    """Return the job and the identity of an interrupted removal's leftover; None if this is none."""
    if not path.name.startswith(LEFT):
        return None
    name, _, identity = path.name.removeprefix(LEFT).rpartition(".")
    return name or identity, identity


def _taken(path: Path, *, dry_run: bool) -> tuple[Path, str, int]:
    """Rename the directory of an ended job for removal; return the new path, the identity and the size.

    Raises:
        TrainerError: The job is still running.
        OSError: It cannot be read or renamed, or is gone.
    """
    found = state(path.name)["job"]
    job = JobDirectory.named(path.name)
    if not found["ended"]:
        raise TrainerError(f"it is {found['state']}")
    made = (path / "job.json").stat()
    identity = f"{made.st_ino:x}-{made.st_mtime_ns:x}"
    # While this holds the lock, no agent can resume the job; after the rename, none finds it.
    lock = job.lock()
    if lock is None:
        raise TrainerError("its agent is still at work")
    with lock:
        size = _size(path)
        if not dry_run:
            path = path.rename(path.with_name(f"{LEFT}{path.name}.{identity}"))
        return path, identity, size


def _size(path: Path) -> int:
    """Return a directory's disk usage in bytes, as ``du`` does."""
    found = path.lstat().st_blocks
    for folder, directories, files in os.walk(path):
        for name in (*directories, *files):
            try:
                found += Path(folder, name).lstat().st_blocks
            except FileNotFoundError:
                continue  # another node is removing it
    return 512 * found


def _delete(path: Path) -> None:
    """Remove a directory that others may be removing as well."""

    def failed(_call: Any, _name: str, problem: Any) -> None:
        if problem[1].errno not in (errno.ENOENT, errno.ESTALE):
            raise problem[1]

    shutil.rmtree(path, onerror=failed)
