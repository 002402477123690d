# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer log``: what logs say, ours and those that others' trainings wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rdm_core.errors import DONE, TrainerError
from rdm_log.wording import listed

if TYPE_CHECKING:
    from rich.console import Console

_TIMERS = 12
"""So many timers are shown, the longest ones."""


@click.group()
def log() -> None:
    """Read what a training wrote: ours, Megatron's, DeepSpeed's, NeMo's, torchtitan's, Hugging Face's."""


@log.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every timer and the loss curve.")
def summary(files: tuple[Path, ...], as_json: bool) -> int:
    """Show the runs of one job: steps, loss, speed, memory, timers.

    A FILE may be a directory: a job's, or one with .out files. Pieces such as n1.out.1 and n1.out are read as
    one.
    """
    from rdm_log.summary import summarise

    found = summarise(files)
    if as_json:
        click.echo(json.dumps({"ok": True, **found.to_json()}, indent=2, ensure_ascii=False))
        return DONE
    from rich.console import Console

    console = Console(highlight=False)
    if found.restarts:
        console.print(f"restarted {found.restarts} time{'s' if found.restarts > 1 else ''}", style="yellow")
    for number, run in enumerate(found.runs, 1):
        _show(console, run, f"run {number} of {len(found.runs)}" if len(found.runs) > 1 else run["file"])
    return DONE


@log.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sections(directory: Path, as_json: bool) -> int:
    """Show the ends of the logs in DIRECTORY.

    The sections are those of get_result: output, errors, GPUs, job, times. DIRECTORY has NODE.out, NODE.err
    and NODE.gpu of each node, as log2/JOBID of FASOP's scripts has.
    """
    from rdm_log.printable import printable
    from rdm_log.sections import sections as sections_of
    from rdm_log.sections import text
    from rdm_log.summary import check_readable

    check_readable(directory)
    if not any(directory.glob("*.out")):
        raise TrainerError(f"{directory} has no NODE.out files; give a directory such as log2/10932251.")
    found = sections_of(directory, directory.resolve().name)
    if as_json:
        shown = {"ok": True, "sections": [section.to_json() for section in found]}
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        click.echo(printable(text(found)))
    return DONE


@log.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--state", default="", help="The scheduler's state of the job, as `sacct -nXo state -j JOBID` prints it."
)
@click.option(
    "--conf",
    type=click.Path(path_type=Path),
    help="KEY=VALUE lines of the request, such as _00_conf.sh.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verdict(path: Path, state: str, conf: Path | None, as_json: bool) -> int:
    """Evaluate the job whose logs are in PATH.

    The result is healthy, starting, stalled, suspect, failed or finished. PATH is a job's directory, one with
    NODE.out, NODE.err and NODE.gpu, or one log.

    Exits with 0 when it is healthy, starting or finished, with 1 when it failed, with 3 when nothing of a
    training is there, with 4 when it stalls or is suspect.
    """
    from rdm_log.observe import observe
    from rdm_log.printable import printable
    from rdm_log.report.job import collect
    from rdm_log.verdict import evaluate

    seen = observe(path, state=state, conf=conf, now=time.time())
    if seen.is_unknown:
        # What the page refuses has no verdict, in the same words.
        collect(path)
    found = evaluate(seen)
    if as_json:
        click.echo(json.dumps({"ok": True, **found.to_json()}, indent=2, ensure_ascii=False))
    else:
        click.echo(printable(f"{found.word}: {found.reason}"))
        for sentence in found.evidence[1:]:
            click.echo(printable(f"  {sentence}"))
    return found.exit_code


@log.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file, in Chrome's trace format: ui.perfetto.dev opens it.",
)
def trace(paths: tuple[Path, ...], output: Path) -> int:
    """Write one timeline of all ranks, and print the pipeline's bubble.

    A PATH is a job's directory with a step trace (logging.trace_steps), of each node where they share none,
    or a log with the timers of all ranks that have their moments.
    """
    from rdm_log.timeline import bubble, chrome_trace, of_paths

    found = of_paths(paths)
    if not found.spans:
        raise TrainerError(
            f"{paths[0]} has neither a step trace nor timers of all ranks with their moments; set "
            "logging.trace_steps, such as 20-22, for the next run."
        )
    try:
        output.write_text(json.dumps(chrome_trace(found)), encoding="utf-8")
    except OSError as error:
        raise TrainerError(f"{output} cannot be written: {error.strerror}.") from error
    steps = found.steps
    covered = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    click.echo(f"{sum(map(len, found.spans.values())):,} spans of {len(found.spans)} ranks, {covered}.")
    share = bubble(found)
    if share is not None:
        click.echo(
            f"The bubble is {100 * share:.1f} % of the time from the first forward to the last backward pass."
        )
    return DONE


def _show(console: Console, run: dict[str, Any], title: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from rdm_log.printable import printable

    console.print()
    console.print(Text(title, "bold"))
    facts = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    for name, text in _facts(run):
        facts.add_row(Text(printable(name)), Text(printable(text)))
    console.print(facts)
    timers = sorted(run["timers"], key=lambda timer: timer["mean_ms"], reverse=True)
    if timers:
        console.print(_timers(timers[:_TIMERS]))


def _facts(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    total = f" of {run['train_iterations']}" if run["train_iterations"] else ""
    began = f", from checkpoint {run['loaded_checkpoint']}" if run["loaded_checkpoint"] is not None else ""
    yield "iterations", f"{run['first_iteration']} to {run['last_iteration']}{total}{began}"
    if run["first_time"]:
        yield "time", " to ".join(dict.fromkeys((run["first_time"], run["last_time"])))
    yield from _loss(run["loss"], run["last_iteration"])
    yield from _step(run["step_ms"])
    speed = [
        f"{run[key]:,.{digits}f} {unit}"
        for key, digits, unit in (
            ("samples_per_second", 1, "samples/s"),
            ("tokens_per_second", 0, "tokens/s"),
            ("tokens_per_gpu_per_second", 0, "tokens/s per GPU"),
            ("tflops", 1, "TFLOP/s per GPU"),
            ("mfu_percent", 1, "% MFU"),
        )
        if run[key] is not None
    ]
    if speed:
        yield "speed", ", ".join(speed)
    if run["learning_rate"] is not None:
        yield "learning rate", f"{run['learning_rate']:.3E} at the end"
    if run["grad_norm"]["last"] is not None:
        yield "gradient norm", f"{run['grad_norm']['last']:.3f}, highest {run['grad_norm']['highest']:.3f}"
    yield "skipped, NaN", f"{run['skipped']} and {run['nan']} iterations"
    if run["memory_mib"]:
        yield "memory", _memory(run["memory_mib"])
    if run["saved_checkpoint"] is not None:
        yield "checkpoint", f"saved at iteration {run['saved_checkpoint']}"
    for evaluation in run["evaluations"][-2:]:
        values = ", ".join(
            f"{name} {value:.4f}"
            for name, value in evaluation.items()
            if name != "where" and value is not None
        )
        yield "evaluation", f"{evaluation['where']}: {values}"


def _loss(loss: dict[str, Any], last_iteration: int) -> Iterator[tuple[str, str]]:
    if loss["first"] is not None:
        text = (
            f"{loss['first']:.4f} to {loss['last']:.4f}, lowest {loss['lowest']:.4f} at {loss['lowest_at']}"
        )
        if loss["curve"][-1][0] < last_iteration:
            text += f", the last at {loss['curve'][-1][0]}"
        if loss["not_finite"]:
            text += f", {loss['not_finite']} lines without a number"
        yield loss["name"], text
    elif loss["not_finite"]:
        yield loss["name"], "never a number"


def _step(step: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if step["median"] is None:
        return
    text = f"median {step['median']:,.1f} ms"
    if step["p95"] is not None:
        text += f", 95 % below {step['p95']:,.1f}, the first {step['first']:,.1f}"
    yield "time of a step", text
    slow = step["outliers"]
    if slow:
        yield "slow steps", listed((f"{iteration} ({time:,.0f} ms)" for iteration, time in slow), 5)


def _memory(memory: dict[str, dict[str, float]]) -> str:
    def most(rank: str) -> float:
        return max(memory[rank].get("max reserved", 0.0), memory[rank].get("max allocated", 0.0))

    rank = max(memory, key=most)
    sizes = memory[rank]
    parts = [
        f"{sizes[name] / 1024:.1f} GiB {word}"
        for name, word in (("max allocated", "allocated"), ("max reserved", "reserved"))
        if name in sizes
    ]
    return f"{', '.join(parts)} at most, by rank {rank} of {len(memory)} that reported it"


def _timers(timers: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from rdm_log.printable import printable

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("timer")
    for name in ("times", "mean ms", "longest ms", "slowest rank"):
        table.add_column(name, justify="right", no_wrap=True)
    for timer in timers:
        slowest = timer["slowest_rank"]
        table.add_row(
            Text(printable(timer["name"])),
            f"{timer['count']:,}",
            f"{timer['mean_ms']:,.2f}",
            f"{timer['longest_ms']:,.2f}",
            "" if slowest is None else f"{slowest} ({timer['slowest_rank_mean_ms']:,.2f})",
        )
    return table
