# SPDX-License-Identifier: GPL-3.0-or-later
"""Cache the modules that Ansible packs for nodes, for later runs.

In every run Ansible packs each module: it reads the module and all its imports, and compresses them. It first
looks for a packed module in a directory of the run, where this cache puts links to those of earlier runs. The
key covers the sources and versions, so edited sources or another version find nothing.

A run never writes through a link, and cached files are written atomically.
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
"""The collections whose modules are cached; the key does not cover the sources of others."""

KEPT = 4
"""How many sets are kept, one for each state of the sources."""

OLD_S = 24 * 3600.0
"""Seconds for which every set is kept, since a run may still use it."""


def cache_home() -> Path:
    """Return the user's cache directory for packed modules (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rdm-provision" / "modules"


def key(ansible: str, sources: Iterable[Path]) -> str:
    """Return the key of a set: a digest of Ansible's and Python's versions, and of the sources.

    Args:
        ansible: the version of Ansible.
        sources: directories; files below them count by path, size and modification time.
    """
    state = hashlib.sha256(f"{ansible}\0{platform.python_version()}\0".encode())
    for source in sources:
        for path in sorted(source.rglob("*.py")):
            found = path.stat()
            state.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return state.hexdigest()[:32]


def link(kept: Path, run: Path) -> None:
    """Link a set's modules into a run's directory.

    Args:
        kept: the set; ignored if another user could write to its directory.
        run: where Ansible looks for packed modules in this run.
    """
    with contextlib.suppress(OSError):
        if not _is_mine(kept):
            return
        os.utime(kept)
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        for packed in kept.glob("[!.]*"):  # not the temporary files of another run
            with contextlib.suppress(FileExistsError):
                (run / packed.name).symlink_to(packed)


def keep(run: Path, kept: Path) -> None:
    """Cache what a run has packed, and delete sets that have not been used for long."""
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
    """Yield the modules that this run packed itself and whose sources the key covers."""
    names = tuple(f"ansible_collections.{collection}." for collection in COLLECTIONS)
    for entry in run.iterdir():
        whole = not entry.name.endswith((".lock", "-part"))
        if whole and entry.name.startswith(names) and not entry.is_symlink():
            yield entry


def _is_mine(folder: Path) -> bool:
    """Return whether no other user can write to a directory."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _forget(home: Path) -> None:
    used = {entry: entry.stat().st_mtime for entry in home.iterdir() if entry.is_dir()}
    for old in sorted(used, key=used.__getitem__)[:-KEPT]:
        if time.time() - used[old] > OLD_S:
            shutil.rmtree(old, ignore_errors=True)
