# SPDX-License-Identifier: GPL-3.0-or-later
"""Diffs of files for Ansible's ``--diff``.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import difflib
from typing import Dict

SHOWN_WHOLE = 8192  # characters of both sides together; a longer diff is cut


_LINES = 100  # of a diff that is cut


def prepared(before: str, after: str, before_header: str, after_header: str) -> str:
    """Return a unified diff, cut to _LINES lines, with the number of further lines."""
    sides = [text.splitlines(True) for text in (before, after)]
    lines = list(difflib.unified_diff(sides[0], sides[1], before_header, after_header, n=2))
    if not lines:  # other permissions
        lines = ["--- {0}\n".format(before_header), "+++ {0}\n".format(after_header)]
    ended = [line if line.endswith("\n") else line + "\n" for line in lines[:_LINES]]
    more = len(lines) - len(ended)
    return "".join(ended) + ("({0} more lines)\n".format(more) if more > 0 else "")


def difference(path: str, before: str, after: str) -> Dict[str, str]:
    """Return a file's change as Ansible shows it with ``--diff``."""
    return {"before_header": path, "after_header": path, "before": before, "after": after}
