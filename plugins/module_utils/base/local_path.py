# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that are others on each node, or for each user.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os

HOST_NAME = "%n"
"""In a path: the node's own host name, as `uname -n` prints it, where nodes may share a file system."""


def local_path(text: str) -> str:
    """Return a path as it is on this node, for this user."""
    return os.path.expanduser(text).replace(HOST_NAME, os.uname().nodename)
