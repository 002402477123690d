"""``rdm-provision down``: take away what ``up`` made."""

from __future__ import annotations

import click

from rdm_provision.cli.common import Options, lab_steps, run_options
from rdm_provision.cli.render.commands import again, inventory_flag
from rdm_provision.wording import names

__all__ = ["down"]


@click.command(
    epilog="""\b
Examples:
  rdm-provision down                    containers, network, plugin, files
  rdm-provision down --images           the images as well
  rdm-provision down --limit node3      one node
"""
)
@click.option("--images", is_flag=True, help="Remove the images as well.")
@run_options
def down(options: Options, images: bool) -> int:
    """Take away what `up` made, in the reverse order, and nothing else.

    Only what carries this cluster's label goes. Other containers, networks and images stay, and so do the
    address plan and what training jobs have left on the nodes. Refused while a training job runs.
    """
    cluster = options.cluster()
    result = options.carry_out_to_tell(cluster, cluster.down(images=images, tags=options.tags, **options.run))

    from rdm_provision.cli.render import view

    console = view.out()
    view.recap(console, result)
    for path, nodes in cluster.kept(result).items():
        console.print(f"  Kept, because something is in it: {path} ({names(nodes)})", soft_wrap=True)
    flag = inventory_flag()
    if not result.ok:
        view.next_steps(console, view.retry_steps(result, again(), options.limit))
    elif cluster.is_lab:
        view.next_steps(
            console,
            [
                ("bring it up again", f"rdm-provision up{flag}"),
                *lab_steps(cluster),
            ],
        )
    return result.exit_code
