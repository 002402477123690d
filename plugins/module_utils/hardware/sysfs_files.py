# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads files, directories and links of sysfs. A missing one reads as empty.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
from typing import Any


def entries(*parts: str) -> list[str]:
    """Return the names in a directory, in natural order; none if it cannot be read."""
    try:
        return sorted(os.listdir(os.path.join(*parts)), key=natural)
    except OSError:
        return []


def read(*parts: str) -> str:
    """Return a small file's stripped text; "" if it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def number(*parts: str) -> int:
    """Return the decimal number in a file; 0 if it cannot be read or has none."""
    text = read(*parts)
    return int(text) if text.isdigit() else 0


def link(*parts: str) -> str:
    """Return the file name of a symbolic link's final target; "" if there is none."""
    path = os.path.join(*parts)
    return os.path.basename(os.path.realpath(path)) if os.path.exists(path) else ""


def natural(name: str) -> list[Any]:
    """Sort key for natural order: mlx5_2 before mlx5_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
