# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the modules that Ansible has packed for nodes, for the next run.

Ansible packs each module anew in every run: it reads the module and all that it imports, and compresses it.
It looks for a packed one in a directory of the run; there, the next run finds links to those of the last one.
They are kept by what they are made from, so that another version, or a source that was edited, finds none.

Files of a run are never written through a link, and the kept ones are put into their place in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole

COLLECTIONS = ("rdm.provision", "community.docker")
"""The collections of which modules are kept; those of others are not known to be what the key says."""

KEPT = 4
"""How many sets stay, one for each state of the sources."""

OLD_S = 24 * 3600.0
"""Seconds for which a set stays in any case: a run may still use it."""


def cache_home() -> Path:
    """Return the user's folder for packed modules (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rdm-provision" / "modules"


def key(ansible: str, sources: Iterable[Path]) -> str:
    """Return what names a set: a digest of Ansible's and Python's versions, and of the sources.

    Args:
        ansible: the version.
        sources: directories; the files below count by path, size and time of change.
    """
    state = hashlib.sha256(f"{ansible}\0{platform.python_version()}\0".encode())
    for source in sources:
        for path in sorted(source.rglob("*.py")):
            found = path.stat()
            state.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return state.hexdigest()[:32]


def link(kept: Path, run: Path) -> None:
    """Let a run find what is kept.

    Args:
        kept: a set; nothing is taken from a folder that somebody else could write to.
        run: where Ansible looks for packed modules in this run.
    """
    with contextlib.suppress(OSError):
        if not _is_mine(kept):
            return
        os.utime(kept)
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        for packed in kept.glob("[!.]*"):  # without those that another run is writing
            with contextlib.suppress(FileExistsError):
                (run / packed.name).symlink_to(packed)


def keep(run: Path, kept: Path) -> None:
    """Keep what a run has packed, and forget the sets that nobody has used for long."""
    with contextlib.suppress(OSError):
        new = [packed for packed in _packed(run) if not (kept / packed.name).exists()]
        if not new:
            return
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_mine(kept):
            return
        for packed in new:
            write_whole(str(kept / packed.name), packed.read_bytes(), 0o600)
        _forget(kept.parent)


def _packed(run: Path) -> Iterator[Path]:
    """Yield what this run has packed itself, of the modules whose sources are in the key."""
    names = tuple(f"ansible_collections.{collection}." for collection in COLLECTIONS)
    for entry in run.iterdir():
        whole = not entry.name.endswith((".lock", "-part"))
        if whole and entry.name.startswith(names) and not entry.is_symlink():
            yield entry


def _is_mine(folder: Path) -> bool:
    """Return whether nobody else can write to a folder."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _forget(home: Path) -> None:
    used = {entry: entry.stat().st_mtime for entry in home.iterdir() if entry.is_dir()}
    for old in sorted(used, key=used.__getitem__)[:-KEPT]:
        if time.time() - used[old] > OLD_S:
            shutil.rmtree(old, ignore_errors=True)
