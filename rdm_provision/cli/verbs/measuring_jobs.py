# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs whose results a verb needs: each is watched to its end; one that fails ends the program."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rdm_provision.cli.common import Options, emit_json
from rdm_provision.cli.render.commands import inventory_flag

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster
    from rdm_provision.results.events import RunResult
    from rdm_provision.results.job_state import JobState
    from rdm_provision.runner.run import Run


def job_stem(verb: str, config: Path) -> str:
    """Return the prefix of the names of a verb's jobs."""
    name = re.sub(r"[^a-z0-9_.-]+", "-", config.stem.lower()).strip("-._")[:24]
    return f"{verb}-{name}-{time.strftime('%m%d-%H%M%S')}"


def check_nodes(
    options: Options, cluster: Cluster, config: Path, overrides: Sequence[str]
) -> Mapping[str, Mapping[str, Any]]:
    """Check whether the nodes can run a job, in any layout, and return what each reports.

    Args:
        options: the common ones; their limit selects the nodes.
        cluster: the nodes' cluster.
        config: the job's file.
        overrides: values over it.

    Returns:
        Node -> ``gpu``, ``torch``, ``deepspeed`` and what else a job's check finds.

    Raises:
        click.exceptions.Exit: they cannot; the reason was printed.
    """
    run = cluster.profile(config, overrides, check=True, **options.run)
    return cluster.checked_facts(watch_to_end(options, cluster, run)[0])


def watch_to_end(
    options: Options, cluster: Cluster, run: Run, *, may_be_refused: bool = False
) -> tuple[RunResult, JobState | None]:
    """Watch a job to its end, and return its run's result and its last state.

    Args:
        options: the common ones.
        cluster: the job's cluster.
        run: not yet started.
        may_be_refused: return even if the job was not started; there is no state then.

    Raises:
        click.exceptions.Exit: it was not started, or the user stopped watching it; that was printed.
    """
    from rdm_provision.cli.render import job_view, view

    result, state = job_view.watch(run, cluster.name, silent=options.as_json)
    if not result.cancelled and (may_be_refused or state is not None or result.ok):
        return result, state
    if options.as_json:
        emit_json({**result.to_json(), "job": state.to_json() if state else None})
    elif result.cancelled and state is not None and not state.ended:
        job_view.left(view.err(), state, inventory_flag())
    elif not view.unhappy_end(result):
        view.recap(view.err(), result)
    raise click.exceptions.Exit(result.exit_code)
