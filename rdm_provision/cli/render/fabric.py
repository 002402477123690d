"""The table of the fabric: who reaches whom, and how fast."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from rdm_provision.cli.render import view
from rdm_provision.wording import names

__all__ = ["show_fabric"]

MATRIX_UP_TO = 12
"""Up to this many nodes every pair is shown; beyond, a line per node and the longest pairs."""
LONGEST = 5
"""How many of the slowest pairs are named."""


def show_fabric(console: Console, fabric: Mapping[str, Any]) -> None:
    """Print the fabric table as ``RunResult.fabric`` holds it, one for each rail."""
    for rail, one in (fabric.get("rails") or {"": fabric}).items():
        _show(console, f"Fabric, rail {rail}" if rail else "Fabric", one)


def _show(console: Console, title: str, fabric: Mapping[str, Any]) -> None:
    nodes = [str(name) for name in fabric.get("nodes", ())]
    times: Mapping[str, Mapping[str, float | None]] = fabric.get("rtt_us") or {}
    slow = set(fabric.get("slow", ()))
    if not nodes:
        return
    method = {"tcp": "TCP", "icmp": "ICMP", "mixed": "ICMP and TCP"}.get(str(fabric.get("method")), "")
    measure = f"round-trip time in microseconds between containers{', ' + method if method else ''}"
    view.heading(console, title, measure)
    if len(nodes) <= MATRIX_UP_TO and times:
        _matrix(console, nodes, times, slow)
    else:
        _per_node(console, nodes, times, fabric, slow)
    sample = fabric.get("sample") or {}
    if sample:
        console.print(f"  {sample.get('text', '')}", soft_wrap=True)
    if outside := [str(name) for name in fabric.get("outside", ())]:
        console.print(f"  Not in this run: {names(outside)}")
    for finding in fabric.get("findings") or _bad_verdicts(fabric):
        console.print(Text.assemble(("  failed: ", "bold red"), str(finding)), soft_wrap=True)
    for warning in fabric.get("warnings", ()):
        console.print(Text.assemble(("  warning: ", "yellow"), str(warning)), soft_wrap=True)
    if len(nodes) > 1 and all(verdict.get("ok") for verdict in fabric.get("verdicts", {}).values()):
        asked = " that it was measured with" if sample else ""
        console.print(Text(f"  Every container of this run reaches every other{asked}.", "green"))


def _bad_verdicts(fabric: Mapping[str, Any]) -> list[str]:
    verdicts: Mapping[str, Mapping[str, Any]] = fabric.get("verdicts", {})
    return [
        f"{name}: {verdict.get('reason', '')}" for name, verdict in verdicts.items() if not verdict.get("ok")
    ]


def _matrix(
    console: Console, nodes: list[str], times: Mapping[str, Mapping[str, float | None]], slow: set[str]
) -> None:
    made = view.table("from \\ to", *nodes, right=nodes)
    for one in nodes:
        row = times.get(one)
        cells = [Text(one, "yellow" if one in slow else "")]
        for other in nodes:
            if one == other:
                cells.append(Text("-", "dim"))
            elif row is None:
                cells.append(Text("?", "dim"))
            else:
                cells.append(_time(row[other]) if other in row else Text("", "dim"))
        made.add_row(*cells)
    view.show(console, made)


def _per_node(
    console: Console,
    nodes: list[str],
    times: Mapping[str, Mapping[str, float | None]],
    fabric: Mapping[str, Any],
    slow: set[str],
) -> None:
    verdicts: Mapping[str, Mapping[str, Any]] = fabric.get("verdicts", {})
    made = view.table("node", "min", "median", "max", "silent", "", right=("min", "median", "max", "silent"))
    for name in nodes:
        row = times.get(name, {})
        known = [rtt for rtt in row.values() if rtt is not None]
        middle = median(known) if known else fabric.get("median_us", {}).get(name)
        silent = str(sum(1 for rtt in row.values() if rtt is None)) if row else "?"
        ok = verdicts.get(name, {}).get("ok", True)
        mark = Text("ok", "green") if ok else Text("failed", "bold red")
        if ok and name in slow:
            mark = Text("slow", "yellow")
        bounds = [_time(edge(known)) if known else Text("?", "dim") for edge in (min, max)]
        made.add_row(name, bounds[0], _time(middle), bounds[1], silent, mark)
    view.show(console, made)
    pairs = sorted(
        ((rtt, one, other) for one, row in times.items() for other, rtt in row.items() if rtt is not None),
        reverse=True,
    )
    if pairs:
        worst = ", ".join(f"{one} → {other} {rtt:.0f}" for rtt, one, other in pairs[:LONGEST])
        console.print(f"  Longest: {worst}")


def _time(rtt: float | None) -> Text:
    return Text("silent", "bold red") if rtt is None else Text(f"{rtt:.0f}")
