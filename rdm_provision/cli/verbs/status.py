"""Cluster: show what runs where, and what is not as planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json, limited_run_options
from rdm_provision.cli.render.commands import with_inventory
from rdm_provision.errors import FAILED

if TYPE_CHECKING:
    from rich.console import Console

    from rdm_provision.results.node_state import NodeState


@click.command(
    epilog="""\b
Examples:
  rdm-provision status
  rdm-provision status --limit node2
  rdm-provision status --json | jq '.nodes[] | select(.healthy | not)'
"""
)
@limited_run_options
def status(options: Options) -> int:
    """Show what runs on each node, and what is not as planned. Reads only.

    What `up` would refuse is not as planned, too. Exits with 1 when anything is not, or a node could not be
    queried.
    """
    cluster = options.cluster()
    result = options.carry_out(cluster, cluster.status(**options.run), brief=True)
    if result is None:
        return 0
    states = cluster.states(result)
    healthy = bool(states) and all(state.healthy for state in states)
    code = result.exit_code or (0 if healthy else FAILED)
    if options.as_json:
        from rdm_provision.results.events import to_json

        data = {**result.to_json(), "exit_code": code, "healthy": healthy}
        for state in states:
            data["nodes"][state.node] |= {**to_json(state), "healthy": state.healthy}
        emit_json(data)
        return code

    from rdm_provision.cli.render import view

    if view.unhappy_end(result):
        return result.exit_code
    console = view.out()
    name = str((result.plan or {}).get("cluster", cluster.name))
    view.heading(console, name, view.count(len(states), "node"))
    _show(console, states)
    view.warnings(console, result)
    return code


def _show(console: Console, states: Sequence[NodeState]) -> None:
    from rich.text import Text

    from rdm_provision.cli.render import view

    plugin = ["plugin"] if any(state.plugin for state in states) else []
    made = view.table("node", "MY_IP", "container", "image", "network", *plugin, "engine", "")
    for state in states:
        if state.healthy:
            remark = Text("ok", "green")
        elif state.reachable:
            remark = Text(with_inventory("; ".join(state.remarks)), "yellow")
        else:
            remark = Text("unreachable: " + "; ".join(state.remarks), "bold magenta")
        cells = [
            state.node,
            state.my_ip or "-",
            state.container or "-",
            state.image or "-",
            state.network or "-",
        ]
        cells += [state.plugin or "-"] if plugin else []
        made.add_row(*cells, state.engine or "-", remark)
    view.show(console, made)
