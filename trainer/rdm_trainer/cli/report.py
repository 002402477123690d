# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer report``: one HTML page of what jobs wrote."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rdm_core.errors import DONE


@click.command(
    epilog="""\b
Examples:
  rdm-trainer report /jobs/gpt-1121-081512              into gpt-1121-081512.html
  rdm-trainer report log2/10932251 -o slow.html         NODE.out, NODE.err, NODE.gpu of anybody
  rdm-trainer report before.log after.log -o both.html  how their configurations differ, too
"""
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page.  [default: NAME.html here, comparison.html of several]",
)
@click.option(
    "--state",
    default="",
    metavar="WORD",
    help="Of one PATH: the scheduler's state of the job, as `sacct -nXo state -j JOBID` prints it.",
)
@click.option(
    "--conf",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of one PATH: KEY=VALUE lines of the request, such as _00_conf.sh.",
)
@click.option("--json", "as_json", is_flag=True, help="Print where it is, and each job's verdict, as JSON.")
def report(paths: tuple[Path, ...], output: Path | None, state: str, conf: Path | None, as_json: bool) -> int:
    """Make one HTML page of what jobs wrote: verdict, loss, speed, memory, GPUs, timeline.

    A PATH is a job's directory, one with NODE.out, NODE.err and NODE.gpu, or a single log: ours,
    Megatron-LM's, Megatron-DeepSpeed's or DeepSpeed's. Several are compared. The page needs no network.
    --state and --conf add what no log has.
    """
    from rdm_log.printable import printable
    from rdm_log.report.write import default_output, write

    if (state or conf) and len(paths) > 1:
        raise click.UsageError("--state and --conf are for one PATH, such as log2/10932251.")
    output = output or default_output(paths)
    jobs = write(paths, output, state=state, conf=conf)
    if as_json:
        verdicts = {job.name: job.verdict().to_json() for job in jobs}
        click.echo(
            json.dumps({"ok": True, "output": str(output), "jobs": verdicts}, indent=2, ensure_ascii=False)
        )
        return DONE
    for job in jobs:
        verdict = job.verdict()
        click.echo(printable(f"{job.name}: {verdict.word}. {verdict.reason}"))
    click.echo(f"Written to {output}.")
    return DONE
