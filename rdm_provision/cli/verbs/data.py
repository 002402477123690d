# SPDX-License-Identifier: GPL-3.0-or-later
"""Cluster: copy a directory of data to every node."""

from __future__ import annotations

from pathlib import PurePath

import click

from rdm_provision.cli.common import Options, limited_run_options
from rdm_provision.cli.render.commands import again
from rdm_provision.errors import InputError
from rdm_provision.wording import names


@click.command(
    epilog="""\b
Examples:
  rdm-provision data tokens/                   /jobs/data in every container
  rdm-provision data tokens/ --limit node7     a new node alone
  rdm-provision data /var/lib/rdm/c/gpt/checkpoints --from n1,n2 --to gpt
                                               checkpoints, to resume on other nodes
"""
)
@click.argument("directory", type=click.Path(), metavar="DIRECTORY")
@click.option(
    "--from",
    "from_nodes",
    metavar="NODES",
    help="DIRECTORY is on these hosts or groups, such as n1,n2, and each has all or some of its files.",
)
@click.option("--to", default="", metavar="PATH", help="A directory below /jobs/data for the files.")
@click.option("--check", is_flag=True, help="List files that nodes lack (all with --json); copy nothing.")
@limited_run_options
def data(options: Options, directory: str, from_nodes: str | None, to: str, check: bool) -> int:
    """Copy DIRECTORY to every node, where it is /jobs/data in the container. What is there already stays.

    It is for nodes without a shared file system. Where there is one, mount it with `container_volumes`.
    """
    cluster = options.cluster()
    nodes = (from_nodes or "").replace(",", " ").split()
    if from_nodes is not None and not nodes:
        raise InputError("--from names no node: leave it out for a directory on this machine")
    run = cluster.bring_data(directory, from_nodes=nodes, to=to, check=check, **options.run)
    result = options.carry_out_and_report(
        cluster, run, lambda result: {"lacking": cluster.lacking_data(result)} if check else {}
    )
    from rdm_provision.cli.render import view

    console = view.out()
    if not result.ok:
        view.recap(console, result)
        view.next_steps(console, view.retry_steps(result, again(), options.limit))
    elif check and result.changed:
        for node, paths in cluster.lacking_data(result).items():
            console.print(f"{node} lacks {names(paths)}", soft_wrap=True)
    elif result.changed:
        where = "a job's configuration" if cluster.is_bare else "the containers"
        there = PurePath("/jobs/data", to)
        console.print(f"Brought {directory} to {names(result.changed)}: {there} in {where}.")
    else:
        console.print("Nothing was changed: every node has the data.")
    return result.exit_code
