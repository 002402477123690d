# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories of the operating system, which a cluster cannot have for itself."""

from __future__ import annotations

import posixpath

# Filesystem Hierarchy Standard 3.0, without /media, /mnt and /srv, which hold an administrator's own files.
_ROOTS = (
    *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "opt", "proc", "root", "run", "sbin"),
    *("sys", "tmp", "usr", "var", "var/lib"),
    # What some of these are links to, or what links to them.
    *("usr/bin", "usr/lib", "usr/lib32", "usr/lib64", "usr/sbin", "var/run"),
)
_SYSTEM = frozenset({"/", *(f"/{name}" for name in _ROOTS)})


def is_system_directory(path: str) -> bool:
    """Return whether an absolute path is a directory of the operating system itself.

    In `/etc` the cluster's `ssh` would be the directory of the node's sshd, and a container that mounts `/`
    could write to all of the node.
    """
    # POSIX keeps two slashes at the beginning apart from one; Linux does not.
    return posixpath.normpath(f"/{path.lstrip('/')}") in _SYSTEM
