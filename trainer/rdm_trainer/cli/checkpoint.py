# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer checkpoint``: look into a checkpoints directory, and put it right."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from rdm_core.errors import DONE, FAILED, TrainerError
from rdm_log.wording import size_text
from rdm_trainer.checkpoint import damage, files
from rdm_trainer.checkpoint.files import Inventory, Step
from rdm_trainer.checkpoint.identity import describe


@click.group()
def checkpoint() -> None:
    """List, verify and repair the checkpoints of a directory.

    DIRECTORY is `checkpoints/` of a job, or the job's directory. On disks that nodes do not share, each node
    has its part, and these verbs see one of them. A training that resumes sees all, and needs no verb.
    """


def _directory(value: Path) -> Path:
    directory = files.checkpoints_of(value)
    if not directory.is_dir():
        raise TrainerError(f"{directory} is not a directory; give a job's directory, or its checkpoints/.")
    return directory


def _verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb its argument and ``--json``."""
    function = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)
    argument = click.argument("directory", type=click.Path(path_type=Path))
    return argument(function)


@contextlib.contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainerError(f"{directory} cannot be written: {error.strerror}.", exit_code=FAILED) from error


def _iteration(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--iteration", type=click.IntRange(min=0), help="The step.  [default: the newest complete one]"
    )(function)


def _describe(step: Step, inventory: Inventory) -> dict[str, Any]:
    manifest = step.manifest
    absent = files.missing(manifest, [step]) if manifest else []
    return {
        "iteration": step.iteration,
        "complete": manifest is not None and not absent,
        "missing": absent,
        "manifest": manifest is not None,
        "bytes": sum(step.files.values()),
        "consumed_samples": manifest.state.get("consumed_samples") if manifest else None,
        "layout": dict(manifest.layout) if manifest else None,
        "pointed_to": inventory.latest == files.tag(step.iteration),
    }


def _newest(inventory: Inventory, directory: Path, iteration: int | None) -> int:
    whole = files.complete_steps([inventory])
    if iteration is None:
        if not whole:
            raise TrainerError(f"{directory} has no complete checkpoint; see `rdm-trainer checkpoint list`.")
        return max(whole)
    if iteration not in whole:
        known = ", ".join(map(str, whole)) or "none"
        raise TrainerError(
            f"{directory} has no complete checkpoint of iteration {iteration}; complete: {known}."
        )
    return iteration


@checkpoint.command("list")
@_verb
def list_(directory: Path, as_json: bool) -> int:
    """List the checkpoints, complete or not, and the pointers."""
    directory = _directory(directory)
    inventory = files.scan(directory)
    steps = [_describe(step, inventory) for step in inventory.steps.values()]
    if as_json:
        _print_json(
            {
                "directory": str(directory),
                "checkpoints": steps,
                "latest": inventory.latest,
                "latest_checkpointed_iteration": inventory.megatron,
                "leftovers": list(inventory.leftovers),
            }
        )
        return DONE
    if not steps:
        click.echo(f"{directory} has no checkpoints.")
    for step in steps:
        click.echo(_line(step))
    for name in inventory.leftovers:
        click.echo(
            f"{'':>10}  {name} was left by a run that ended while writing; the next one removes it, or gives "
            "it back its name"
        )
    return DONE


def _line(step: dict[str, Any]) -> str:
    if step["complete"]:
        state = "complete"
    elif step["manifest"]:
        state = f"{len(step['missing'])} files are missing here"
    else:
        state = "no manifest that can be read: not written by rdm-trainer, or not to the end, or damaged"
    words = [f"{step['iteration']:>10}", f"{size_text(step['bytes']):>10}", state]
    if layout := step["layout"]:
        words.append(describe(layout))
    if step["pointed_to"]:
        words.append("<- latest")
    return "  ".join(words)


@checkpoint.command()
@_verb
@_iteration
def verify(directory: Path, as_json: bool, iteration: int | None) -> int:
    """Read a checkpoint's files to the end and compare their checksums. Exit code 1 when one is damaged."""
    directory = _directory(directory)
    inventory = files.scan(directory)
    if iteration is None:
        iteration = max(inventory.steps, default=None)
        if iteration is None:
            raise TrainerError(f"{directory} has no checkpoints.")
    step = inventory.steps.get(iteration)
    if step is None:
        raise TrainerError(
            f"{directory} has no checkpoint of iteration {iteration}; there are "
            f"{', '.join(map(str, inventory.steps)) or 'none'}."
        )
    described = _describe(step, inventory)
    step_directory = directory / files.tag(iteration)
    damaged = [name for name in sorted(step.files) if not damage.is_sound(step_directory / name)]
    sound = described["complete"] and not damaged
    if as_json:
        _print_json({**described, "damaged": damaged, "ok": sound})
    else:
        click.echo(_line(described))
        for name in described["missing"]:
            click.echo(f"  missing, or of another size: {name}")
        for name in damaged:
            click.echo(f"  damaged: {name}")
        if sound:
            click.echo(f"  {len(step.files)} files are whole.")
    return DONE if sound else FAILED


@checkpoint.command()
@_verb
@_iteration
def repair(directory: Path, as_json: bool, iteration: int | None) -> int:
    """Point to a complete checkpoint.

    Also removes what unfinished writes left. With --iteration, later checkpoints are set aside (renamed to
    end in .aside, not removed), so that the training goes on from that one.
    """
    directory = _directory(directory)
    with _writing(directory):
        files.recover(directory)
    inventory = files.scan(directory)
    chosen = _newest(inventory, directory, iteration)
    with _writing(directory):
        later = [step for step in inventory.steps if step > chosen]
        aside = [] if iteration is None else files.set_aside(directory, later)
        files.clear_leftovers(directory)
        files.point_to(directory, chosen)
    if as_json:
        _print_json({"iteration": chosen, "removed": list(inventory.leftovers), "aside": aside})
        return DONE
    for name in inventory.leftovers:
        click.echo(f"removed {name}")
    for name in aside:
        click.echo(f"set aside {name}")
    click.echo(f"The pointers say iteration {chosen}.")
    return DONE


@checkpoint.command(hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def convert(arguments: tuple[str, ...]) -> int:  # noqa: ARG001
    """Print what replaces this verb of earlier releases."""
    raise TrainerError(
        "Checkpoints are no longer converted: a training reads them in every layout as they are; leave this "
        "command out."
    )


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
