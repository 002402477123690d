"""``rdm-provision verify``: measure the fabric."""

from __future__ import annotations

import click

from rdm_provision.cli.common import Options, emit_json, inventory_flag, limited_run_options

__all__ = ["verify"]


@click.command(
    epilog="""\b
Examples:
  rdm-provision verify                         all pairs, of a large cluster a sample
  rdm-provision verify --all-pairs             all pairs, however many
  rdm-provision verify --limit node1,node2     only between these
  rdm-provision verify --json | jq .fabric.rtt_us
"""
)
@click.option("--all-pairs", is_flag=True, help="Measure every pair also where a sample would do.")
@limited_run_options
def verify(options: Options, all_pairs: bool) -> int:
    """Measure reachability and round-trip times between the containers.

    Up to 256 nodes, every pair is measured. In a larger cluster every node measures a few others and is
    measured by as many, which finds every bad node and every bad link to the switch.

    Bounded in time. Every node gets a verdict, with the reason when it is a bad one; a pair that does not
    talk fails the run.
    """
    cluster = options.cluster()
    result = options.carry_out(cluster, cluster.verify(all_pairs=all_pairs, **options.run))
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
