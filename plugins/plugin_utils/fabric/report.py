# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of a measured fabric, of RDMA and of an all-reduce, from the plain data of a result.

Pure. Playbooks print a report with `text`; the command-line program prints it in the terminal's colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import size_text

MATRIX_NODES = 12
"""Up to this many nodes, every pair is shown; beyond, a line per node and the slowest pairs."""
METHODS = {"tcp": ", TCP", "icmp": ", ICMP", "mixed": ", ICMP and TCP"}


class Table(NamedTuple):
    """One table.

    Attributes:
        title: its heading.
        about: what it shows, and in which units.
        columns: their headings; all but the first and an unnamed last one hold numbers.
        rows: their cells; the first cell names the row.
        notes: sentences below it.
    """

    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


class Report(NamedTuple):
    """What is shown of one result.

    Attributes:
        tables: one for each rail.
        findings: what fails the run, one sentence each.
        warnings: what does not fail it.
        good: one sentence if nothing fails.
    """

    tables: Sequence[Table]
    findings: Sequence[str]
    warnings: Sequence[str]
    good: str


def fabric_report(fabric: Mapping[str, Any], waiting: Sequence[str] = ()) -> Report:
    """Return the report of the fabric.

    Args:
        fabric: fabric.as_dict() of the only rail, or of_rails() of several.
        waiting: nodes that are outside this run only because their container does not run yet.
    """
    well = fabric["ok"] and len(fabric["nodes"]) > 1
    measured = " that it was measured with" if fabric["sample"] else ""
    return Report(
        [_round_trips(title, one, waiting) for title, one in _rails("Fabric", fabric)],
        fabric["findings"],
        fabric["warnings"],
        f"Every container of this run reaches every other{measured}." if well else "",
    )


def rdma_report(rdma: Mapping[str, Any]) -> Report:
    """Return the report of the RDMA measurements, a line per node.

    Args:
        rdma: rdma.as_dict() of the only rail, or of_rails() of several.
    """
    well = rdma["ok"] and len(rdma["nodes"]) > 1
    return Report(
        [_pairs(title, one) for title, one in _rails("RDMA", rdma)],
        rdma["findings"],
        rdma["warnings"],
        "Every node is as fast as the others." if well else "",
    )


def collective_report(collective: Mapping[str, Any]) -> Report:
    """Return the report of what evaluate_collective() returned, a line per size."""
    ranks, nodes = collective["ranks"], len(collective["nodes"])
    backend = collective["backend"]
    about = f"{ranks} ranks on {nodes} nodes, {backend}; bandwidths in GB/s, as nccl-tests have them"
    rows = [
        [
            size_text(one["bytes"]),
            f"{1000 * one['seconds']:.2f} ms",
            f"{one['algbw']:.2f}",
            f"{one['busbw']:.2f}",
        ]
        for one in collective["sizes"]
    ]
    return Report(
        [Table("All-reduce", about, ("size", "time", "algbw", "busbw"), rows)] if rows else [],
        collective["findings"],
        collective["warnings"],
        "No node makes it slow." if collective["ok"] else "",
    )


def text(report: Report) -> str:
    """Return a report as lines without colours."""
    lines = []
    for table in report.tables:
        lines.append(f"{table.title}: {table.about}")
        lines += _aligned([table.columns, *table.rows]) if table.rows else ()
        lines += table.notes
    lines += [f"failed: {finding}" for finding in report.findings]
    lines += [f"warning: {warning}" for warning in report.warnings]
    return "\n".join([*lines, report.good] if report.good else lines)


def _rails(title: str, result: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield the title and the data of each rail's table."""
    for rail, one in (result.get("rails") or {"": result}).items():
        yield f"{title}, rail {rail}" if rail else title, one


def _round_trips(title: str, fabric: Mapping[str, Any], waiting: Sequence[str]) -> Table:
    outside = [name for name in fabric["outside"] if name not in set(waiting)]
    nodes = fabric["nodes"]
    columns: Sequence[str] = ()
    rows: list[list[str]] = []
    notes: list[str] = []
    about = f"round-trip time in microseconds between containers{METHODS.get(fabric['method'], '')}"
    if not nodes:
        about = "nothing was measured"
    elif len(nodes) <= MATRIX_NODES:
        columns = [*nodes, *(outside if len(nodes) + len(outside) <= MATRIX_NODES else ())]
        rows = [_matrix_row(one, fabric["rtt_us"].get(one), columns) for one in nodes]
        columns = ["from \\ to", *columns]
    else:
        columns = ("node", "min", "median", "max", "silent", "")
        rows = [_node_row(one, fabric) for one in nodes]
        if fabric["longest"]:
            pairs = (f"{one} -> {other} {rtt:.0f}" for one, other, rtt in fabric["longest"])
            notes.append(f"Longest: {', '.join(pairs)}")
    if fabric["sample"]:
        notes.append(fabric["sample"]["text"])
    if waiting:
        notes.append(f"The container does not run yet on: {listed(waiting)}")
    if outside:
        notes.append(f"Not in this run: {listed(outside)}")
    return Table(title, about, columns, rows, notes)


def _matrix_row(one: str, times: Mapping[str, float | None] | None, columns: Sequence[str]) -> list[str]:
    cells = ["-" if one == other else "?" if times is None else "" for other in columns]
    if times is not None:
        cells = [_time(times[to]) if to in times else cell for to, cell in zip(columns, cells, strict=True)]
    return [one, *cells]


def _node_row(name: str, fabric: Mapping[str, Any]) -> list[str]:
    times = fabric["by_node"][name]
    known = (times["least_us"], fabric["median_us"][name], times["most_us"])
    slow = "slow" if name in fabric["slow"] else "ok"
    return [
        name,
        *("?" if rtt is None else _time(rtt) for rtt in known),
        "?" if times["silent"] is None else str(times["silent"]),
        slow if fabric["verdicts"][name]["ok"] else "failed",
    ]


def _time(rtt: float | None) -> str:
    return "silent" if rtt is None else f"{rtt:.0f}"


def _pairs(title: str, rdma: Mapping[str, Any]) -> Table:
    figures = ("sent_gbit", "received_gbit", "latency_us", "rate_gbit")
    rows = [
        [
            name,
            *("--" if value is None else f"{value:.3g}" for value in map(rdma["by_node"][name].get, figures)),
            "ok" if rdma["verdicts"][name]["ok"] else "failed",
        ]
        for name in rdma["nodes"]
    ]
    return Table(
        title,
        "medians between containers in Gb/s, latency in microseconds",
        ("node", "sends", "receives", "latency", "link", ""),
        rows if rdma["usual_gbit"] is not None else (),
        [rdma["sample"]["text"]] if rdma["sample"] else (),
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows with the first column aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
