"""Tables of what was measured between nodes, in colour. The collection decides what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich.table
from rich.console import Console
from rich.text import Text

from rdm_provision.cli.render import view
from rdm_provision.environment import make_importable
from rdm_provision.results.events import RunResult

if TYPE_CHECKING:
    from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.report import Report, Table

_STYLES = {"ok": "green", "slow": "yellow", "failed": "bold red", "silent": "bold red"} | dict.fromkeys(
    ("-", "--", "?"), "dim"
)
"""Styles of cells that are not numbers."""


def show_measured(console: Console, result: RunResult) -> None:
    """Print what a run measured: the fabric, RDMA between pairs of nodes, and an all-reduce over all."""
    make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import report

    for data, of in (
        (result.fabric, report.fabric_report),
        (result.rdma, report.rdma_report),
        (result.collective, report.collective_report),
    ):
        if data and data["nodes"]:  # empty before containers run
            _show(console, of(data))


def _show(console: Console, report: Report) -> None:
    for table in report.tables:
        view.heading(console, table.title, table.about)
        if table.rows:
            view.show(console, _drawn(table))
        for note in table.notes:
            console.print(f"  {note}", soft_wrap=True)
    for finding in report.findings:
        console.print(Text.assemble(("  failed: ", "bold red"), finding), soft_wrap=True)
    for warning in report.warnings:
        console.print(Text.assemble(("  warning: ", "yellow"), warning), soft_wrap=True)
    if report.good:
        console.print(Text(f"  {report.good}", "green"))


def _drawn(table: Table) -> rich.table.Table:
    made = view.table(*table.columns, right=[column for column in table.columns[1:] if column])
    for name, *cells in table.rows:
        made.add_row(Text(name), *(Text(cell, _STYLES.get(cell, "")) for cell in cells))
    return made
