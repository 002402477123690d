# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove control characters and sequences from other programs' output."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    # Whole sequences first, so that no part is left: colours and cursor moves; titles and the clipboard.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def printable(text: str) -> str:
    r"""Return a text without control characters, except tab and newline.

    >>> printable("\x1b]0;title\x07\x1b[31mred\x1b[0m\tfield\n")
    'red\tfield\n'
    """
    return _UNSAFE.sub("", text)
