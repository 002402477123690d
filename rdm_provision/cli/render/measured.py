"""What pairs of nodes measured over RDMA, and all of them with an all-reduce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from rdm_provision.cli.render import view

__all__ = ["show_collective", "show_rdma"]


def show_rdma(console: Console, rdma: Mapping[str, Any]) -> None:
    """Print a line per node of what ``RunResult.rdma`` holds, then every finding."""
    for rail, measured in (rdma.get("rails") or {"": rdma}).items():
        _show_pairs(console, measured, f"RDMA on {rail}" if rail else "RDMA")
    _told(console, rdma)
    if rdma["ok"] and len(rdma["nodes"]) > 1:
        console.print(Text("  Every node is as fast as the others.", "green"))


def _show_pairs(console: Console, rdma: Mapping[str, Any], heading: str) -> None:
    """Print a line per node of what was measured on one rail."""
    view.heading(console, heading, "medians between containers in Gb/s, latency in microseconds")
    figures = ("sends", "receives", "latency", "link")
    made = view.table("node", *figures, "", right=figures)
    for name in rdma["nodes"]:
        one = rdma["by_node"][name]
        cells = [one[key] for key in ("sent_gbit", "received_gbit", "latency_us", "rate_gbit")]
        made.add_row(name, *[_figure(value) for value in cells], _mark(rdma, name))
    if rdma["usual_gbit"] is not None:
        view.show(console, made)
    if rdma.get("sample"):
        console.print(f"  {rdma['sample']['text']}", soft_wrap=True)


def show_collective(console: Console, collective: Mapping[str, Any]) -> None:
    """Print a line per size of what ``RunResult.collective`` holds, then every finding."""
    if collective["sizes"]:
        ranks, nodes = view.count(collective["ranks"], "rank"), view.count(len(collective["nodes"]), "node")
        about = f"{ranks} on {nodes}, {collective['backend']}; bandwidths in GB/s as nccl-tests define them"
        view.heading(console, "All-reduce", about)
        made = view.table("size", "time", "algbw", "busbw", right=("size", "time", "algbw", "busbw"))
        for one in collective["sizes"]:
            made.add_row(
                f"{one['bytes'] >> 20} MiB",
                f"{1000 * one['seconds']:.2f} ms",
                f"{one['algbw']:.2f}",
                f"{one['busbw']:.2f}",
            )
        view.show(console, made)
    _told(console, collective)
    if collective["ok"]:
        console.print(Text("  No node makes it slow.", "green"))


def _told(console: Console, evaluated: Mapping[str, Any]) -> None:
    for finding in evaluated["findings"]:
        console.print(Text.assemble(("  failed: ", "bold red"), str(finding)), soft_wrap=True)
    for warning in evaluated["warnings"]:
        console.print(Text.assemble(("  warning: ", "yellow"), str(warning)), soft_wrap=True)


def _figure(value: float | None) -> Text:
    return Text("--", "dim") if value is None else Text(f"{value:.3g}")


def _mark(evaluated: Mapping[str, Any], name: str) -> Text:
    return Text("ok", "green") if evaluated["verdicts"][name]["ok"] else Text("failed", "bold red")
