"""Cluster: measure the fabric between the containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, limited_run_options
from rdm_provision.cli.render.commands import again, inventory_flag

if TYPE_CHECKING:
    from rdm_provision.results.events import RunResult


@click.command(
    epilog="""\b
Examples:
  rdm-provision verify                         all pairs, of a large cluster a sample
  rdm-provision verify --all-pairs             all pairs, however many
  rdm-provision verify --limit node1,node2     only between these
  rdm-provision verify --rdma                  bandwidth and latency of RDMA, pair by pair
  rdm-provision verify --collective            an all-reduce over all nodes, from 1 MiB to 1 GiB
  rdm-provision verify --collective --max-size 64M
  rdm-provision verify --json | jq .fabric.rtt_us
  rdm-provision verify --rdma --json | jq .rdma.bandwidth_gbit
"""
)
@click.option("--all-pairs", is_flag=True, help="Measure every pair also where a sample would do.")
@click.option("--rdma", is_flag=True, help="Measure RDMA with perftest, too.")
@click.option("--collective", is_flag=True, help="Time an all-reduce over all nodes, too (training image).")
@click.option(
    "--max-size",
    default="",
    metavar="SIZE",
    help="Largest tensor of --collective, from 1M up.  [default: 1G]",
)
@limited_run_options
def verify(options: Options, all_pairs: bool, rdma: bool, collective: bool, max_size: str) -> int:
    """Measure reachability and round-trip times between the containers.

    Up to 256 nodes, every pair is measured. In a larger cluster every node measures a few others and is
    measured by as many, which finds every faulty node and every faulty link to the switch.

    With --rdma, pairs of nodes measure bandwidth and latency with perftest, in rounds in which no node is in
    two pairs; above 128 nodes, 16 rounds. With --collective, all nodes reduce tensors as a training does,
    over NCCL, RCCL or Gloo; it needs an image with the trainer. Run both while no job runs.

    Each faulty node is named with the reason. A pair without a connection fails the run; with --rdma and
    --collective so does a node or link slower than the others.
    """
    if max_size and not collective:
        raise click.UsageError("--max-size needs --collective.")
    cluster = options.cluster()
    run = cluster.verify(
        all_pairs=all_pairs, rdma=rdma, collective=collective, max_size=max_size, **options.run
    )
    result = options.carry_out_and_report(cluster, run)

    from rdm_provision.cli.render import fabric, view

    console = view.out()
    view.recap(console, result)
    fabric.show_measured(console, result)
    if not result.ok:
        view.next_steps(console, next_steps(result, inventory_flag(), again(), options.limit))
    return result.exit_code


def next_steps(result: RunResult, flag: str, command: str, limit: str = "") -> list[tuple[str, str]]:
    """Return what to do when nodes failed.

    Args:
        result: of the run.
        flag: the options that name the inventory.
        command: the command line that measured, without ``--limit``.
        limit: the run's limit.
    """
    from rdm_provision.cli.render import view

    repeated = view.retry_steps(result, command, limit, whole=True)
    # `up` cannot add a device that the kernel does not have.
    bare = set((result.rdma or {}).get("without_device") or ())
    if result.failed and not result.unreachable and bare.issuperset(result.failed):
        return repeated
    return [("repair what differs from the inventory", f"rdm-provision up{flag}"), *repeated]
