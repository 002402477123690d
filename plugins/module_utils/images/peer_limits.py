# SPDX-License-Identifier: GPL-3.0-or-later
"""What both ends of a connection between peers keep to.

This runs on nodes (Python 3.8 or newer, standard library).
"""

from __future__ import annotations

QUIET_S = 3.0
"""Seconds without data, or until a request is complete, after which a connection is closed."""
BODY_MAX = 1 << 20
CHUNK = 1 << 18
"""Bytes that are sent, and received, at a time: each wake of a thread costs CPU time."""
