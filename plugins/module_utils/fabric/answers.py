# SPDX-License-Identifier: GPL-3.0-or-later
"""The text formats in which a node and the control machine exchange measurements: one line per node.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Dict, Iterable, Optional, Tuple


def parse_nodes(text: str) -> Dict[str, str]:
    """Return MY_IP by name, in rank order, from lines `name MY_IP`.

    Raises:
        ValueError: a line has another form.
    """
    nodes = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2:
            raise ValueError(
                "line {0} of the cluster's nodes is not `name MY_IP`: {1!r}".format(number, line)
            )
        nodes[fields[0]] = fields[1]
    return nodes


def packed(answers: Iterable[Tuple[str, Optional[float], Optional[float]]]) -> str:
    """Return one line `name median minimum` per peer, in microseconds, or `name -` for a silent peer.

    As Python objects, the results of a thousand nodes with a thousand peers each would number in the
    millions.
    """
    return "".join(
        "{0} -\n".format(name)
        if median is None or least is None
        else "{0} {1:.1f} {2:.1f}\n".format(name, median, least)
        for name, median, least in answers
    )


def unpacked(text: str) -> Dict[str, Optional[float]]:
    """Return the median by peer; None for a silent peer."""
    lines = (line.split() for line in text.splitlines())
    return {line[0]: None if line[1] == "-" else float(line[1]) for line in lines}
