# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs: make one HTML page of what a job wrote, or compare several."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import (
    Options,
    emit_json,
    is_here,
    limited_run_options,
    log_directory_options,
    unknown_job,
)
from rdm_provision.cli.render.printable import printable
from rdm_provision.wording import names

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster


@click.command(
    epilog="""\b
Examples:
  rdm-provision report gpt-1121-081512            into gpt-1121-081512.html
  rdm-provision report gpt-1 gpt-2 -o both.html   two, and how their configurations differ
  rdm-provision report ./log2/10932251            a directory here, of anybody's job
  rdm-provision report ./before.log ./after.log
  rdm-provision report ./log2/1093 --state "$(sacct -nXo state -j 1093)" --conf _00_conf.sh
"""
)
@click.argument("targets", nargs=-1, required=True, metavar="JOB|PATH...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page.  [default: NAME.html here, comparison.html of several]",
)
@log_directory_options("Of one PATH")
@limited_run_options
def report(
    options: Options, targets: tuple[str, ...], output: Path | None, state: str, conf: Path | None
) -> int:
    """Make one HTML page of what a JOB wrote: verdict, loss, speed, memory, GPUs, timeline.

    Several are compared. The nodes read their own logs, and only what is shown comes here. A name with a `/`,
    or the name of a file or directory here, is a PATH: a job's directory, one with NODE.out, NODE.err and
    NODE.gpu, or a single log. The page needs no network. --state and --conf add what no log has, as
    in `rdm-provision jobs PATH --verdict`.
    """
    from rdm_provision.api import report as reports

    for target in targets:
        if "/" in target and not is_here(target):
            from rdm_provision.errors import InputError

            hint = "give a job's directory, one with NODE.out files, a log, or the name of a job"
            raise InputError(f"there is no file {Path(target)}", hint=hint)
    jobs = [target for target in targets if "/" not in target and not is_here(target)]
    if (state or conf) and (jobs or len(targets) > 1):
        raise click.UsageError("--state and --conf are for one PATH, such as ./log2/10932251.")
    first = Path(targets[0]).resolve().name if targets[0] not in jobs else targets[0]
    output = output or Path(f"{first}.html" if len(targets) == 1 else "comparison.html")
    with tempfile.TemporaryDirectory(prefix="rdm-report-") as folder:
        gathered = {job: Path(folder, job) for job in jobs}
        cluster = options.cluster() if jobs else None
        missing: dict[str, None] = {}
        for job, job_folder in gathered.items():
            assert cluster is not None
            code, unanswered = _gather(cluster, options, job, job_folder)
            if code is not None:
                return code
            missing.update(dict.fromkeys(unanswered))
        if options.show_command:
            return 0
        paths = [gathered.get(target, Path(target)) for target in targets]
        verdicts = reports.write(paths, output, state=state, conf=conf)
    if options.as_json:
        summary = {"ok": True, "exit_code": 0, "output": str(output), "missing": [*missing], "jobs": verdicts}
        emit_json(summary)
        return 0
    for name, verdict in verdicts.items():
        click.echo(printable(f"{name}: {verdict['verdict']}. {verdict['reason']}"))
    without = f", without {names(list(missing))}, which could not be queried" if missing else ""
    click.echo(f"Written to {output}{without}.")
    return 0


def _gather(cluster: Cluster, options: Options, job: str, folder: Path) -> tuple[int | None, list[str]]:
    """Gather a job's data from the nodes.

    Returns:
        An exit code if there are no data, else None; and the names of nodes that did not answer.
    """
    from rdm_provision.api import report as reports
    from rdm_provision.cli.render import job_view, view

    run = cluster.jobs(job, report=True, **options.run)
    if options.show_command:
        click.echo(run.command)
        return None, []
    result, _ = job_view.watch(run, cluster.name, silent=options.as_json, brief=True)
    if view.unhappy_end(result):
        return result.exit_code, []
    parts = cluster.report_parts(result)
    if not cluster.knows_job(result) and result.ok:
        raise unknown_job(cluster, result, job)
    if not parts:
        from rdm_provision.errors import InputError

        raise InputError(f"the job {job} has written nothing yet", hint=f"rdm-provision jobs {job}")
    if not result.ok:
        # A page that lacks some nodes is better than none.
        job_view.unanswered(view.err(), result)
    unanswered = [name for name, node in result.nodes.items() if node.why]
    reports.write_parts(folder, parts, reports.last_known(cluster.home), unanswered)
    return None, unanswered
