# SPDX-License-Identifier: GPL-3.0-or-later
"""The hint for a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question with the known names nearest to a misspelt one.

    Args:
        name: the misspelt name.
        known: the names that exist.
        otherwise: what to return if none is near.

    >>> did_you_mean("gtp-1", ["gpt-1", "t5"], "")
    'did you mean gpt-1?'
    >>> did_you_mean("gpt", ["gpt-1129-122958", "t5"], "")
    'did you mean gpt-1129-122958?'
    >>> did_you_mean("n", ["node1", "node2", "node3", "node4"], "the nodes are node1 to node4")
    'the nodes are node1 to node4'
    """
    names = list(known)
    begun = [one for one in names if name and one.startswith(name)]
    close = difflib.get_close_matches(name, names, n=3) or (begun if len(begun) <= 3 else [])
    return f"did you mean {' or '.join(close)}?" if close else otherwise
