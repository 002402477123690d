# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the fabric to people. Times are in microseconds."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.fabric import Fabric

MATRIX_NODES = 12


WORST_PAIRS = 10


def table(fabric: Fabric, waiting: Sequence[str] = ()) -> str:
    """Return a matrix for people while it fits a screen, else a line per node and the longest pairs.

    Args:
        fabric: what to show.
        waiting: those of the nodes outside this run that take no part only because their container does not
            run yet.
    """
    outside = [name for name in fabric.outside if name not in set(waiting)]
    if not fabric.nodes:
        lines = ["Nothing was measured."]
    elif len(fabric.nodes) <= MATRIX_NODES:
        lines = ["Round-trip time in microseconds, from the container of the row to that of the column:"]
        lines += _matrix(fabric, outside if len(outside) + len(fabric.nodes) <= MATRIX_NODES else [])
    else:
        lines = ["Round-trip time between containers in microseconds:", *_lines(fabric)]
    if fabric.sample:
        lines.append(str(fabric.sample))
    if waiting:
        lines.append(f"The container does not run yet on: {listed(waiting)}")
    if outside:
        lines.append(f"Not in this run: {listed(outside)}")
    lines += ["FAILED " + finding for finding in fabric.findings]
    lines += ["warning: " + warning for warning in fabric.warnings]
    if len(fabric.nodes) > 1 and not fabric.findings:
        lines.append(
            "Every container of this run reaches every other{}.".format(
                " that it was measured with" if fabric.sample else ""
            )
        )
    return "\n".join(lines)


def _time(rtt: float | None) -> str:
    return "--" if rtt is None else f"{rtt:.0f}"


def _matrix(fabric: Fabric, outside: list[str]) -> list[str]:
    columns = [*fabric.nodes, *outside]
    rows = [["", *columns]]
    for one in fabric.nodes:
        times = fabric.rtt_us.get(one)
        if times is None:
            cells = ["." if other == one else "?" for other in columns]
        else:
            cells = [_time(times[other]) if other in times else "." for other in columns]
        rows.append([one, *cells])
    return _aligned(rows)


def _lines(fabric: Fabric) -> list[str]:
    members = set(fabric.nodes)
    rows = [["node", "median", "silent", ""]]
    for name in fabric.nodes:
        times = fabric.rtt_us.get(name)
        silent = (
            "?"
            if times is None
            else str(sum(1 for peer, rtt in times.items() if rtt is None and peer in members))
        )
        result = fabric.verdicts[name]
        word = "FAILED" if not result.ok else "slow" if name in fabric.slow else "ok"
        rows.append([name, _time(fabric.median_us[name]), silent, word])
    pairs = [
        (rtt, one, other)
        for one, times in fabric.rtt_us.items()
        for other, rtt in times.items()
        if rtt is not None and other in members
    ]
    pairs.sort(key=lambda pair: -pair[0])
    worst = [f"{one} -> {other} {rtt:.0f}" for rtt, one, other in pairs[:WORST_PAIRS]]
    return [*_aligned(rows), "Longest: {}".format(", ".join(worst))] if worst else _aligned(rows)


def _aligned(rows: list[list[str]]) -> list[str]:
    """Return rows with the first column to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
