# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-provision data``: bring data to the nodes."""

from __future__ import annotations

from pathlib import Path

import click

from rdm_provision.cli.common import Options, limited_run_options
from rdm_provision.cli.render.commands import again
from rdm_provision.wording import names

__all__ = ["data"]


@click.command(
    epilog="""\b
Examples:
  rdm-provision data tokens/                   /jobs/data in every container
  rdm-provision data tokens/ --limit node7     a new node alone
"""
)
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIRECTORY")
@limited_run_options
def data(options: Options, directory: Path) -> int:
    """Copy DIRECTORY to every node, where it is /jobs/data in the container. What is there already stays.

    It is for nodes without a shared file system; mount one with `container_volumes` where there is one.
    """
    cluster = options.cluster()
    result = options.carry_out_and_report(cluster, cluster.bring_data(directory, **options.run))
    from rdm_provision.cli.render import view

    console = view.out()
    if not result.ok:
        view.recap(console, result)
        view.next_steps(console, view.retry_steps(result, again(), options.limit))
    elif result.changed:
        where = "a job's configuration" if cluster.is_bare else "the containers"
        console.print(f"Brought {directory} to {names(result.changed)}: /jobs/data in {where}.")
    else:
        console.print("Nothing was changed: every node has the data.")
    return result.exit_code
