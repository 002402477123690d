"""Cluster: show what `up` would change on each node. Changes nothing."""

from __future__ import annotations

import shlex

import click

from rdm_provision.cli.common import Options, emit_json, recheck_option, run_options
from rdm_provision.cli.render.commands import again, inventory_flag
from rdm_provision.errors import FAILED


@click.command(
    epilog="""\b
Examples:
  rdm-provision check                        every node, with the lines of files that differ
  rdm-provision check --limit node2          one node
  rdm-provision check -v                     all lines of all nodes
  rdm-provision check --exit-code && echo in sync
  rdm-provision check --json | jq '.nodes[].changes'
"""
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 when something would change, like git diff.")
@recheck_option
@run_options
def check(options: Options, exit_code: bool, recheck: bool) -> int:
    """Show what `up` would change, per node, down to the lines of files. Changes nothing."""
    cluster = options.cluster()
    result = options.carry_out(cluster, cluster.check(tags=options.tags, recheck=recheck, **options.run))
    if result is None:
        return 0
    code = result.exit_code or (FAILED if exit_code and result.changed else 0)
    if options.as_json:
        emit_json({**result.to_json(), "exit_code": code, "in_sync": result.ok and not result.changed})
        return code

    from rdm_provision.cli.render import fabric, view

    if view.unhappy_end(result):
        return code
    console = view.out()
    view.drift(console, result, everything=options.verbose > 0)
    view.recap(console, result)
    view.found(console, result)
    fabric.show_measured(console, result)
    if not result.ok:
        view.next_steps(console, view.retry_steps(result, again(), options.limit, whole=True))
    elif result.changed:
        part = "".join(
            f" {option} {shlex.quote(value)}"
            for option, value in (("--limit", options.limit), ("--tags", options.tags))
            if value
        )
        view.next_steps(console, [("make it so", f"rdm-provision up{inventory_flag()}{part}")])
    return code
