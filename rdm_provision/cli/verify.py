"""``rdm-provision verify``: measure the fabric."""

from __future__ import annotations

import click

from rdm_provision.cli.common import Options, emit_json, inventory_flag, limited_run_options

__all__ = ["verify"]


@click.command(
    epilog="""\b
Examples:
  rdm-provision verify                         all pairs of containers
  rdm-provision verify --limit node1,node2     only between these
  rdm-provision verify --json | jq .fabric.rtt_us
"""
)
@limited_run_options
def verify(options: Options) -> int:
    """Measure reachability and round-trip times between all pairs of containers.

    Bounded in time. Every node gets a verdict, with the reason when it is a bad one; a pair that does not
    talk fails the run.
    """
    cluster = options.cluster()
    result = options.carry_out(cluster, cluster.verify(**options.run))
    if result is None:
        return 0
    if options.as_json:
        emit_json(result.to_json())
        return result.exit_code

    from rdm_provision.cli import fabric, view

    if view.unhappy_end(result):
        return result.exit_code
    console = view.out()
    view.recap(console, result)
    if result.fabric is not None:
        fabric.show_fabric(console, result.fabric)
    if not result.ok:
        flag = inventory_flag(options)
        again = view.mend(result, f"rdm-provision verify{flag}", whole=True)
        view.next_steps(console, [("put right what is not as described", f"rdm-provision up{flag}"), *again])
    return result.exit_code
