# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that differ between nodes or users.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os

HOST_NAME = "%n"
"""In a path: the node's host name (`uname -n`), where nodes may share a file system."""


def local_path(text: str) -> str:
    """Return a path with `~` and `%n` resolved for this user and node."""
    return os.path.expanduser(text).replace(HOST_NAME, os.uname().nodename)
