# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether systemd manages a node's services.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os

DIRECTORY = "/run/systemd/system"


def systemd_runs() -> bool:
    """Return whether systemd runs, and is not just installed: sd_booted(3)."""
    return os.path.isdir(DIRECTORY)
