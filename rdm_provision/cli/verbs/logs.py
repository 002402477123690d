# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs: show what a job wrote on each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json, limited_run_options, refuse_empty, unknown_job
from rdm_provision.wording import names

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster


@click.command(
    epilog="""\b
Examples:
  rdm-provision logs gpt-1121-081512                   the last 20 lines of each node
  rdm-provision logs gpt-1121-081512 --follow          and what comes, until the job has ended
  rdm-provision logs gpt-1121-081512 --err --node n2
  rdm-provision logs gpt-1121-081512 --tail 0 > all.txt
  rdm-provision logs gpt-1121-081512 --err --grep NCCL --fold    each line once
  rdm-provision logs gpt-1121-081512 --err --rank 137
"""
)
@click.argument("job", metavar="JOB")
@click.option(
    "--node",
    default="",
    callback=refuse_empty,
    metavar="NODE",
    help="Only of this node; the same as --limit.",
)
@click.option("--err", "stream", flag_value="err", help="What its processes wrote to standard error.")
@click.option("--gpu", "stream", flag_value="gpu", help="How busy the accelerators were.")
@click.option("-F", "--follow", is_flag=True, help="Go on until the job has ended, or Ctrl-C.")
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Begin with the last N lines of each node; 0 for all.",
)
@click.option("--grep", default="", metavar="REGEX", help="Only lines that match, of the whole log.")
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only lines of this rank: those with its mark, the rest of a traceback that begins with one, and "
    "all lines of a node that has no other rank.",
)
@click.option("--fold", is_flag=True, help="Show equal lines once, with their number and nodes.")
@limited_run_options
def logs(
    options: Options,
    job: str,
    node: str,
    stream: str | None,
    follow: bool,
    tail: int,
    grep: str,
    rank: int | None,
    fold: bool,
) -> int:
    """Show what JOB wrote on each node, with the node's name before each line when there are several."""
    if fold and follow:
        raise click.UsageError("--fold needs all lines, so it cannot be combined with --follow.")
    cluster = options.cluster()
    if node:
        cluster.node(node)
    given = {**options.run, "limit": node or options.limit}
    if follow:
        # Following takes a process for each node.
        given["forks"] = max(given["forks"], len(cluster.select(given["limit"])))
    run = cluster.logs(job, stream=stream or "out", tail=tail, follow=follow, grep=grep, rank=rank, **given)
    if options.show_command:
        click.echo(run.command)
        return 0
    from rdm_provision.cli.render import job_view, view
    from rdm_provision.errors import InputError

    result, texts = job_view.read(run, follow=follow and not options.as_json)
    if result.ok and not cluster.knows_job(result):
        if given["limit"]:
            _refuse_elsewhere(cluster, options, job, given["limit"])
        raise unknown_job(cluster, result, job)
    if result.ok and (ranks := cluster.ranks_instead(result)):
        raise InputError(f"rank {rank} is none of the job {job}", hint=f"its ranks are 0 to {ranks - 1}")
    if options.as_json:
        emit_json({**result.to_json(), "logs": texts})
        return result.exit_code
    if fold:
        for line in job_view.folded(texts):
            click.echo(line)
    else:
        for name, text in texts.items():
            job_view.lines(name, text, list(texts))
    if not any(texts.values()):
        for sentence in cluster.rank_notices(result):
            view.err().print(sentence, markup=False, highlight=False)
    if result.cancelled and follow:
        return 0
    if not view.unhappy_end(result) and not result.ok:
        job_view.unanswered(view.err(), result)
    return result.exit_code


def _refuse_elsewhere(cluster: Cluster, options: Options, job: str, limit: str) -> None:
    """Refuse nodes that do not have a job that others have: they are not part of it, or have lost it."""
    from rdm_provision.cli.render import job_view
    from rdm_provision.errors import InputError

    everywhere = cluster.jobs(job, **{**options.run, "limit": ""})
    result, _ = job_view.watch(everywhere, cluster.name, silent=options.as_json, brief=True)
    for state in cluster.job_states(result):
        nodes = [node.name for node in state.nodes]
        hint = f"its nodes are {names(nodes)}"
        if state.launcher == "slurm":
            hint = f"Slurm ran it: its logs are on {cluster.login}, those of all its nodes"
        elif lost := [node for node in cluster.select(limit) if node in nodes]:
            others = [node for node in nodes if node not in lost]
            where = f"its directory {state.directory} is gone on {names(lost)}"
            raise InputError(
                f"the job {job} has no logs: {where}", hint=f"its other nodes are {names(others)}"
            )
        raise InputError(f"the job {job} is not on {limit}", hint=hint)
