# SPDX-License-Identifier: GPL-3.0-or-later
"""The verb ``tune``: from options and nodes to its output and files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from rdm_core.config import edit
from rdm_core.config.schema import Config
from rdm_planner.engine_step import EngineStep
from rdm_planner.tune.answer import Answer, answer
from rdm_planner.tune.fleet import Fleet
from rdm_planner.tune.options import TuneOptions


def tune(
    options: TuneOptions,
    job: Config,
    fleet: Fleet,
    following: Callable[[Sequence[str]], str],
    *,
    statement: Callable[[Config], EngineStep],
    more: Callable[[], Mapping[str, Any]] = dict,
) -> Answer:
    """Search, print the result, and write the requested files.

    Args:
        options: The options.
        job: The result of :func:`rdm_planner.tune.answer.read_job`.
        fleet: The nodes.
        following: Returns the command to run next, given the winner's overrides.
        statement: Describes the engine's step for a job with a layout.
        more: Called after the output; returns additional keys for JSON.

    Raises:
        TrainerError: There is no layout, none fits, or the file cannot be changed.
    """
    found = searched(options, job, fleet, statement=statement)
    if not options.as_json:
        from rdm_planner.tune.table import show

        show(found, following(found.rows[0]["overrides"]))
    if options.html is not None:
        from rdm_planner.tune.page import write

        write(found, options.html)
        click.echo(f"Written to {options.html}.", err=options.as_json)
    if options.write:
        edit.write(options.config, [*options.overrides, *found.rows[0]["overrides"]])
        click.echo(f"{options.config} has the winner's layout now.", err=options.as_json)
    added = more()
    if options.as_json:
        click.echo(json.dumps({**found.to_json(), **added}, indent=2))
    return found


def searched(
    options: TuneOptions,
    job: Config,
    fleet: Fleet,
    *,
    statement: Callable[[Config], EngineStep],
    keep: int | None = None,
) -> Answer:
    """Return :func:`rdm_planner.tune.answer.answer`, with a progress bar on a terminal."""
    with _progress(visible=not options.as_json) as progress:
        return answer(options, job, fleet, statement, keep=keep, progress=progress)


@contextlib.contextmanager
def _progress(*, visible: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar over layouts on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    is_shown = visible and console.is_terminal
    with Progress(console=console, transient=True, disable=not is_shown) as shown:
        task = shown.add_task("layouts", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
