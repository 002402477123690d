# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of jobs that are over, taken away from this node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdm_job.directory import JobDirectory, jobs_root
from rdm_job.verbs import state
from rdm_trainer.errors import TrainerError

__all__ = ["remove"]


def remove(names: Sequence[str], *, only_look: bool = False) -> dict[str, Any]:
    """Remove the directories of jobs that have ended, and nothing that a link in them leads to.

    Args:
        names: The jobs; one that is not here is left out.
        only_look: Say what would be removed.

    Returns:
        ``removed``: ``job`` and ``bytes`` on the disk of each; ``kept``: ``job`` and the ``reason``.
    """
    removed: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    for name in names:
        path = jobs_root() / name
        try:
            if not path.is_dir():
                continue
            if path.is_symlink():
                raise TrainerError(f"{path} is a link")
            found = state(name)["job"]
            job = JobDirectory.named(name)
            if not found["ended"]:
                raise TrainerError(f"it is {found['state']}")
            # While it is held, nobody can start an agent that goes on with the job.
            lock = job.lock()
            if lock is None:
                raise TrainerError("its agent is still at work")
            with lock:
                size = _size(path)
                if not only_look:
                    # At once for whoever looks: what is left when this is killed is no job any more.
                    gone = path.with_name(f".removed-{name}")
                    path.rename(gone)
                    shutil.rmtree(gone)
            removed.append({"job": name, "bytes": size})
        except (TrainerError, OSError) as error:
            kept.append({"job": name, "reason": str(error).rstrip(".")})
    return {"removed": removed, "kept": kept}


def _size(path: Path) -> int:
    """Return what a directory takes of the disk, in bytes, as ``du`` does."""
    found = path.lstat().st_blocks
    for folder, directories, files in os.walk(path):
        found += sum(Path(folder, name).lstat().st_blocks for name in (*directories, *files))
    return 512 * found
