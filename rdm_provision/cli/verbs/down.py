"""Cluster: remove what `up` made, and nothing else."""

from __future__ import annotations

import click

from rdm_provision.cli.common import Options, lab_steps, run_options
from rdm_provision.cli.render.commands import inventory_flag


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
    """Remove what `up` made, in the reverse order, and nothing else.

    It removes only what carries this cluster's label. Images stay without --images, and so do the address
    plan and the files of training jobs. Refused while a training job runs.
    """
    cluster = options.cluster()
    run = cluster.down(images=images, tags=options.tags, **options.run)
    lab = lab_steps(cluster)
    steps = [("bring it up again", f"rdm-provision up{inventory_flag()}"), *lab] if lab else []
    return options.carry_out_to_recap(cluster, run, steps)
