"""Cluster: bring the cluster up: images, network, containers, hostfile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, lab_steps, recheck_option, run_options
from rdm_provision.cli.render.commands import again, inventory_flag

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster


@click.command(
    epilog="""\b
Examples:
  rdm-provision up                              the lab, or the only inventory there is
  rdm-provision up -i inventory/mine            a cluster of your own
  rdm-provision up --limit node7                a new node alone; the others are not touched
  rdm-provision up --recheck                    compare everything again, on every node
  rdm-provision up -e network_replace=true      with a variable set for this run
  rdm-provision up --show-command               the same in ansible-playbook's words
"""
)
@recheck_option
@run_options
def up(options: Options, recheck: bool) -> int:
    """Bring the cluster up.

    Gathers facts from every node first, and refuses with all problems at once, before anything is changed.
    Then works on what is not as it should be: images, SR-IOV plugin, network, MY_IP, containers, hostfile;
    and measures the fabric. A second run changes nothing. A container in which a training job runs is not
    recreated or restarted: that is refused.
    """
    cluster = options.cluster()
    result = options.carry_out_and_report(
        cluster, cluster.up(tags=options.tags, recheck=recheck, **options.run)
    )

    from rdm_provision.cli.render import fabric, view
    from rdm_provision.runner.parts import named

    console = view.out()
    view.recap(console, result)
    view.found(console, result)
    view.what_runs(console, cluster.containers(result))
    fabric.show_measured(console, result)
    flag = inventory_flag()
    if result.ok:
        if not result.changed:
            console.print()
            where = f" in the parts {', '.join(parts)}" if (parts := named(options.tags or "")) else ""
            console.print(f"Nothing was changed: the cluster is as the inventory describes it{where}.")
        view.next_steps(console, next_steps(cluster, flag))
    else:
        view.next_steps(console, view.retry_steps(result, again(), options.limit))
    return result.exit_code


def next_steps(cluster: Cluster, flag: str) -> list[tuple[str, str]]:
    """Return what to do with a cluster that is up: (what for, command)."""
    if cluster.is_bare:
        return [
            ("the environment that jobs run in", f"rdm-provision env up{flag}"),
            ("train there", f"rdm-provision train{flag} CONFIG.yaml"),
            ("remove it", f"rdm-provision env down{flag}"),
        ]
    return [
        ("what runs where", f"rdm-provision status{flag}"),
        ("a command in every container", f"rdm-provision exec{flag} -- hostname"),
        ("the fabric, measured again", f"rdm-provision verify{flag}"),
        ("take it down", f"rdm-provision down{flag}"),
        *lab_steps(cluster),
    ]
