"""Cluster: show which node has which address. Touches no node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json, inventory_options
from rdm_provision.cli.render.commands import inventory_flag

if TYPE_CHECKING:
    from rdm_provision.results.plan_table import PlanTable

_STYLES = {"new": "green", "kept": "dim", "pinned": "cyan", "moved": "yellow", "removed": "magenta"}


@click.command(
    epilog="""\b
Examples:
  rdm-provision plan                       which node has which address, and what is new
  rdm-provision plan --save                write it to address_plan.cfg beside the inventory
  rdm-provision plan --release node9       node9 is gone for good: free its address
  rdm-provision plan --json | jq -r '.nodes[] | "\\(.node) \\(.my_ip)"'
"""
)
@click.option("--save", is_flag=True, help="Write the plan file. (`up` does so as well.)")
@click.option(
    "--release",
    multiple=True,
    metavar="NODE",
    help="Free the address that a removed node still holds, and save. Repeatable.",
)
@inventory_options
def plan(options: Options, save: bool, release: tuple[str, ...]) -> int:
    """Show the address plan: rank, node, MY_IP, slots, and what is new. Touches no node.

    A node that has an address keeps it, whatever is added, removed or reordered. Collisions with what the
    nodes themselves use are found by `check` and `up`, which query the nodes.
    """
    cluster = options.cluster(planned=not (save or release))
    made = cluster.plan(save=save, release=release)
    if options.as_json:
        emit_json(made.to_json())
        return 0
    _show(made, save=save or bool(release), flag=inventory_flag())
    return 0


def _show(made: PlanTable, *, save: bool, flag: str) -> None:
    from rich.text import Text

    from rdm_provision.cli.render import view

    console = view.out()
    size = view.count(sum(1 for node in made.nodes if node.rank is not None), "node")
    view.heading(console, f"{made.cluster}: {size}", f"{made.subnet}, gateway {made.gateway}")
    table = view.table("rank", "node", "ssh address", "MY_IP", "slots", "", right=("rank", "slots"))
    for node in made.nodes:
        rank = "-" if node.rank is None else str(node.rank)
        slots = "-" if node.slots is None else str(node.slots)
        note = "removed, address reserved" if node.note == "removed" else node.note
        role = " (master)" if node.rank == 0 else ""
        table.add_row(
            rank, node.node + role, node.address or "-", node.my_ip, slots, Text(note, _STYLES[node.note])
        )
    view.show(console, table)
    for warning in made.warnings:
        console.print(Text.assemble(("  warning: ", "yellow"), warning), soft_wrap=True)
    console.print()
    if made.saved:
        console.print(f"{'Saved to' if save else 'As saved in'} {made.file}", soft_wrap=True)
    else:
        console.print(f"Not saved yet. `rdm-provision up{flag}` does so, and so does:", soft_wrap=True)
        console.print(Text(f"  rdm-provision plan{flag} --save", "cyan"), soft_wrap=True)
