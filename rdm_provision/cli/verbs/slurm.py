"""Bare hosts: make a Slurm cluster of the hosts, show it, or remove it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json, lab_steps, whole_run_options
from rdm_provision.cli.render.commands import again, inventory_flag

if TYPE_CHECKING:
    from rich.console import Console

    from rdm_provision.api.cluster import Cluster
    from rdm_provision.results.outcomes import SlurmAnswer
    from rdm_provision.runner.run import Run


@click.group(
    epilog="""\b
Examples:
  rdm-provision lab up --slurm         three nodes to try it on
  rdm-provision slurm up               make them a Slurm cluster
  rdm-provision slurm status           its nodes and its queue
  rdm-provision slurm down             remove it
"""
)
def slurm() -> None:
    """Make a Slurm cluster of the hosts, show it, or remove it.

    For hosts that have no Slurm. A Slurm that `slurm up` did not install is never touched.
    """


@slurm.command(
    epilog="""\b
Examples:
  rdm-provision slurm up
  rdm-provision slurm up -i inventory/mine --show-command
  rdm-provision slurm up -e '{"slurm_options": {"SlurmdTimeout": 60}}'
"""
)
@whole_run_options
def up(options: Options) -> int:
    """Make the cluster, or bring it to what the inventory says now.

    Installs the distribution's packages of munge, Slurm and MariaDB, and writes their configuration: nodes
    from what the hosts have, partitions from the inventory's groups. Running jobs go on; a change that would
    end one is refused. A second run changes nothing.
    """
    cluster = options.cluster()
    flag = inventory_flag()

    def done(console: Console, answer: SlurmAnswer) -> None:
        _nodes(console, answer)
        if answer.hints and not cluster.is_lab:
            console.print()
            console.print("A firewall between the hosts has to let through:")
            for hint in answer.hints:
                console.print(f"  {hint}", soft_wrap=True)

    steps = [
        ("its nodes and its queue", f"rdm-provision slurm status{flag}"),
        *_training_steps(cluster, flag),
        ("remove it", f"rdm-provision slurm down{flag}"),
    ]
    return _carry_out(options, cluster, cluster.slurm_up(**_settings(options)), steps, done)


@slurm.command(
    epilog="""\b
Examples:
  rdm-provision slurm down
  rdm-provision slurm down --purge               with the records of past jobs
"""
)
@click.option("--purge", is_flag=True, help="Also remove the accounting database and slurmctld's state.")
@whole_run_options
def down(options: Options, purge: bool) -> int:
    """Remove what `slurm up` made, and nothing else.

    Packages stay; without --purge, the records of past jobs stay too. Refused while jobs are in the queue.
    """
    cluster = options.cluster()
    run = cluster.slurm_down(purge=purge, **_settings(options))
    steps = lab_steps(cluster)
    return _carry_out(options, cluster, run, steps)


@slurm.command(
    epilog="""\b
Examples:
  rdm-provision slurm status
  rdm-provision slurm status --json | jq -r '.slurm.nodes[] | select(.state == "idle") | .node'
"""
)
@whole_run_options
def status(options: Options) -> int:
    """Show the cluster's nodes, by partition, and its queue. Reads only."""
    cluster = options.cluster()

    def done(console: Console, answer: SlurmAnswer) -> None:
        _nodes(console, answer)
        _queue(console, answer)

    run = cluster.slurm_status(**_settings(options))
    return _carry_out(options, cluster, run, [], done, brief=True)


def _training_steps(cluster: Cluster, flag: str) -> list[tuple[str, str]]:
    """Return how to train through Slurm, if jobs run on bare hosts and a host submits them."""
    if not (cluster.is_bare and cluster.login):
        return []
    return [
        ("the environment that jobs run in", f"rdm-provision env up{flag}"),
        ("train through it", f"rdm-provision train{flag} CONFIG.yaml --launcher slurm"),
    ]


def _settings(options: Options) -> dict[str, int]:
    # There is no --limit, since all hosts have the same configuration.
    return {"forks": options.forks or 0, "verbosity": max(0, options.verbose - 1)}


def _carry_out(
    options: Options,
    cluster: Cluster,
    run: Run,
    steps: list[tuple[str, str]],
    done: Callable[[Console, SlurmAnswer], None] | None = None,
    *,
    brief: bool = False,
) -> int:
    result = options.carry_out(cluster, run, brief=brief)
    if result is None:
        return 0
    answer = cluster.slurm_answer(result)
    if options.as_json:
        emit_json({**result.to_json(), **({"slurm": answer.to_json()} if done else {})})
        return result.exit_code

    from rdm_provision.cli.render import view

    if view.unhappy_end(result):
        return result.exit_code
    console = view.out()
    if not brief or not result.ok:
        view.recap(console, result)
    if result.ok and done is not None:
        done(console, answer)
    retried = view.retry_steps(result, again(), whole=True)
    view.next_steps(console, steps if result.ok else retried)
    return result.exit_code


def _nodes(console: Console, answer: SlurmAnswer) -> None:
    from rdm_provision.cli.render import view

    made = view.table("node", "partition", "state", "GRES", "reason")
    for node in answer.nodes:
        reason = "" if node["reason"] == "none" else node["reason"]
        gres = "" if node["gres"] == "(null)" else node["gres"]
        made.add_row(node["node"], node["partition"], node["state"], gres, reason)
    console.print()
    view.show(console, made)


def _queue(console: Console, answer: SlurmAnswer) -> None:
    from rdm_provision.cli.render import view

    console.print()
    if not answer.jobs:
        console.print("The queue is empty.")
        return
    made = view.table("job", "state", "partition", "nodes")
    for job in answer.jobs:
        made.add_row(job["id"], job["state"], job["partition"], job["nodes"])
    view.show(console, made)
