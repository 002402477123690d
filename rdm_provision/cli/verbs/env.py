"""Bare hosts: make the Python environment of bare hosts, or remove it."""

from __future__ import annotations

import click

from rdm_provision.cli.common import Options, run_options
from rdm_provision.cli.render.commands import inventory_flag


@click.group(
    epilog="""\b
Examples:
  rdm-provision env up -i inventory/mdx
  rdm-provision env up -i inventory/mdx -e python_env_method=uv
  rdm-provision env down -i inventory/mdx
"""
)
def env() -> None:
    """Make the Python environment of bare hosts, or remove it.

    For an inventory with `rdm_runtime: host`, whose nodes train without containers.
    """


@env.command()
@run_options
def up(options: Options) -> int:
    """Prepare bare hosts for training.

    Makes the Python environment, MY_IP, the hostfile, and ssh between the hosts. The environment is the same
    on every node, from a lock file with hashes beside the inventory. A second run changes nothing. The nodes
    need no Docker, and root only where packages are to be installed (pdsh_install, openmpi_install).
    """
    cluster = options.cluster()
    flag = inventory_flag()
    slurm = [("or through Slurm", f"rdm-provision train{flag} CONFIG.yaml --launcher slurm")]
    steps = [
        ("train there", f"rdm-provision train{flag} CONFIG.yaml"),
        *(slurm if cluster.login else ()),
        ("remove it", f"rdm-provision env down{flag}"),
    ]
    return options.carry_out_to_recap(cluster, cluster.env_up(tags=options.tags, **options.run), steps)


@env.command()
@run_options
def down(options: Options) -> int:
    """Remove what `env up` made, and nothing else.

    The files of training jobs stay. Refused while a job uses the environment, or a node that may have
    such a job does not answer.
    """
    cluster = options.cluster()
    return options.carry_out_to_recap(cluster, cluster.env_down(tags=options.tags, **options.run), [])
