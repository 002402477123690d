# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs, from the docstrings of their files: no file is loaded for the help."""

from __future__ import annotations

import re
from pathlib import Path

_DOCSTRING = re.compile(r'^"""([^:\n]+): (.+?)(?:""")?$', re.MULTILINE)
GROUPS = ("Cluster", "Jobs", "Bare hosts", "This machine")


def _verbs() -> dict[str, tuple[str, str]]:
    """Return the verbs: name -> group and line in --help, the first line of its file's docstring."""
    found = {}
    for path in sorted(Path(__file__).with_name("verbs").glob("*.py")):
        first = _DOCSTRING.search(path.read_text(encoding="utf-8"))
        if first and first[1] in GROUPS:
            found[path.stem] = first[1], first[2][:1].upper() + first[2][1:]
    return found


VERBS = _verbs()
