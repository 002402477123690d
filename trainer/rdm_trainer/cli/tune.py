# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer tune``: the fastest layout of a job on nodes of given GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rdm_core.errors import DONE, FAILED, TrainerError

if TYPE_CHECKING:
    from rdm_core.config import Config
    from rdm_planner.job import Job, TrainerModel
    from rdm_planner.layouts import Estimate, Layout
    from rdm_planner.nodes import NodeKind
    from rdm_planner.profile import Profile
    from rdm_planner.report import Point
    from rdm_planner.times import Times

__all__ = ["tune"]

_EPILOG = """
\b
16 nodes with 8 H100 each:        rdm-trainer tune gpt-5b.yaml --nodes 16xH100:8
As measured there:                rdm-trainer tune gpt-5b.yaml --nodes 16xH100:8 --profile h100.json
An A100 node and seven of A10:    rdm-trainer tune gpt2-xl.yaml --nodes 1xA100-40:4 --nodes 7xA10:4
The winner into the file:         rdm-trainer tune gpt2-xl.yaml --nodes 8xA10:4 --write
"""


@click.command(epilog=_EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option(
    "--nodes",
    "groups",
    multiple=True,
    required=True,
    metavar="COUNTxGPU:GPUS",
    help="Nodes of a kind, as 2xH100:8; again for another kind.",
)
@click.option(
    "--inter", type=float, default=200.0, show_default=True, help="Between nodes, Gbit/s of a node."
)
@click.option("--intra", type=float, default=1600.0, show_default=True, help="Between a node's GPUs, Gbit/s.")
@click.option(
    "--efficiency",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    show_default=True,
    help="The share of their peak that GPUs reach.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What rdm-trainer profile measured on a kind of GPU; again for another kind.",
)
@click.option("--top", type=click.IntRange(1, 100), default=5, show_default=True, help="How many layouts.")
@click.option(
    "--pareto", "with_pareto", is_flag=True, help="Show time against cost over subsets of the nodes."
)
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="GPU=AMOUNT",
    help="Price of a GPU-hour, as H100=2.5; without one for each GPU the cost is GPU-hours.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; times are seconds.")
@click.option(
    "--write", is_flag=True, help="Put the winner's keys, and the overrides, into CONFIG; comments stay."
)
def tune(
    config: Path,
    overrides: tuple[str, ...],
    groups: tuple[str, ...],
    inter: float,
    intra: float,
    efficiency: float,
    profiles: tuple[Path, ...],
    top: int,
    with_pareto: bool,
    prices: tuple[str, ...],
    as_json: bool,
    write: bool,
) -> int:
    """Say which layout of CONFIG is the fastest on these nodes.

    That is the tensor, data and pipeline degree, the micro-batch, which blocks are on which stage, and which
    kind of node is at which place.

    Without a profile, times are guesses from published peaks. Exits with 1 when no layout fits.
    """
    from rdm_core import config as configuration
    from rdm_core.config import edit
    from rdm_core.cost import flops
    from rdm_planner import report
    from rdm_planner.job import Job, published_peaks
    from rdm_planner.search import search
    from rdm_trainer.engine_step import engine_step

    job = configuration.load(config, overrides)
    for option, value in (("--inter", inter), ("--intra", intra), ("--efficiency", efficiency)):
        if not (math.isfinite(value) and value > 0):
            raise TrainerError(f"{option} is {value:g}; it must be a number above 0.")
    searched = {override.partition("=")[0]: override for override in overrides}
    for key in (
        "parallel.tensor",
        "parallel.pipeline",
        "parallel.data",
        "parallel.partition",
        "optimisation.micro_batch_size",
    ):
        if key in searched:
            raise TrainerError(f"{searched[key]} is what is searched here; leave it out.")
    measured = _profiles(profiles, job, config)
    nodes = [node for group in groups for node in _nodes(group, inter * 1e9, intra * 1e9, measured)]
    if len({node.gpus for node in nodes}) > 1:
        raise TrainerError("All nodes must have as many GPUs as the others.")
    peaks = {
        node.gpu: accelerator.tflops
        for node in nodes
        if (accelerator := flops.find_accelerator(node.gpu)) is not None
    }
    parallel = job.parallel
    times: Times = published_peaks(job, nodes, peaks, efficiency)
    if profiles:
        times = _measured_times(measured, nodes, config)
    described = Job(job, times, engine_step)
    # What the command line says is held.
    if "parallel.zero_stage" in searched:
        described.zero_stages = [parallel.zero_stage]
    if "parallel.activation_checkpointing" in searched:
        described.checkpointing = [parallel.activation_checkpointing]
    models = _models(described, nodes)
    with _progress(visible=not as_json) as progress:
        # Of one layout the best micro-batch; of equal ones the largest, which came first.
        found = search(models, keep=top, alike=_degrees, progress=progress)
    if not found.layouts:
        raise TrainerError(_no_layout(job, models[0]))
    if not found.best:
        raise TrainerError(_too_large(described, nodes), exit_code=FAILED)
    rows = [_row(job, estimate, peaks, models[0].gpus) for estimate in found.best]
    for row, estimate in zip(rows, found.best, strict=True):
        row["slower"] = dataclasses.asdict(report.slower(found.best[0], estimate))
    rejected = report.rejected(models[0], found.unfit)
    front = _front(described, nodes, _prices(prices)) if with_pareto else []
    if as_json:
        answer = {
            "ok": True,
            "measured": described.times.is_measured,
            "layouts": found.layouts,
            "solved": found.solved,
            "rejected": rejected,
            "best": rows,
        }
        if with_pareto:
            answer["pareto"] = [
                {
                    "counts": dict(point.nodes),
                    "gpu_hours": point.gpu_hours,
                    "price": point.price,
                    **_row(job, point.estimate, peaks, models[0].gpus),
                }
                for point in front
            ]
        click.echo(json.dumps(answer, indent=2))
    else:
        _show(job, rows, found.layouts, found.solved, config, profiles)
        _show_rest(rejected, front)
    if write:
        edit.write(config, [*overrides, *rows[0]["overrides"]])
        click.echo(f"{config} has the winner's layout now.", err=as_json)
    return DONE


def _degrees(layout: Layout) -> tuple[int, int, int]:
    return layout.tensor, layout.data, layout.pipeline


@contextlib.contextmanager
def _progress(*, visible: bool) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many layouts are done."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not visible) as shown:
        task = shown.add_task("layouts", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _prices(given: tuple[str, ...]) -> dict[str, float]:
    """Return the prices of ``--price`` by the GPU's name."""
    from rdm_core.cost import flops

    prices = {}
    for one in given:
        name, _, amount = one.partition("=")
        accelerator = flops.find_accelerator(name)
        if accelerator is None:
            raise TrainerError(f"The GPU {name[:60]!r} of --price is not known; write it as in --nodes.")
        try:
            prices[accelerator.name] = float(amount)
        except ValueError:
            prices[accelerator.name] = math.nan
        if not (math.isfinite(prices[accelerator.name]) and prices[accelerator.name] > 0):
            raise TrainerError(f"--price {name} is {amount[:60]!r}; write an amount above 0, as {name}=2.5.")
    return prices


def _front(described: Job, nodes: list[NodeKind], prices: dict[str, float]) -> list[Point]:
    """Return what no other subset of the nodes beats in time and cost."""
    from rdm_planner import report
    from rdm_planner.search import search

    def fastest(some: Sequence[NodeKind]) -> Estimate | None:
        found = search(_models(described, some), keep=1)
        return found.best[0] if found.best else None

    return report.pareto_front(report.subsets(nodes), fastest, prices)


def _too_large(described: Job, nodes: list[NodeKind]) -> str:
    """Return how many GPUs a model needs that fits nowhere."""
    from rdm_planner import report

    name, gpus = described.config.name, len(nodes) * nodes[0].gpus
    needed = report.gpus_needed(described, nodes)
    if needed is None:
        return f"{name} does not fit {gpus} such GPUs, nor many times as many; take GPUs with more memory."
    return f"{name} does not fit {gpus} such GPUs in any layout; {needed} of them would do."


def _profiles(paths: tuple[Path, ...], job: Config, config: Path) -> dict[str, tuple[Path, Profile]]:
    """Return what was measured, and the file of it, by the names of the GPUs."""
    from importlib import metadata

    from rdm_planner.profile import Profile

    # What is not installed here, where nothing is trained, cannot differ.
    versions = {}
    for package in ("torch", "deepspeed"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    found: dict[str, tuple[Path, Profile]] = {}
    for path in paths:
        one = Profile.read(path)
        one.require(job, versions, source=str(path), command=_measuring(config))
        if one.gpu in found:
            raise TrainerError(f"{found[one.gpu][0]} and {path} are both of the GPU {one.gpu}; give one.")
        found[one.gpu] = path, one
    return found


def _measuring(config: Path) -> str:
    return shlex.join(["rdm-trainer", "profile", str(config)])


def _measured_times(measured: dict[str, tuple[Path, Profile]], nodes: list[NodeKind], config: Path) -> Times:
    from rdm_planner.profile import MeasuredTimes

    for gpu in dict.fromkeys(node.gpu for node in nodes):
        if gpu not in measured:
            files = ", ".join(f"{path} of {name}" for name, (path, _one) in measured.items())
            raise TrainerError(
                f"No profile is of the GPU {gpu} (there is {files}); measure it there: {_measuring(config)}"
            )
    return MeasuredTimes(
        {gpu: one for gpu, (_path, one) in measured.items()}, {node.gpu: node for node in nodes}
    )


def _nodes(
    group: str, inter: float, intra: float, measured: dict[str, tuple[Path, Profile]]
) -> list[NodeKind]:
    """Return the nodes of one ``--nodes``."""
    from rdm_core.cost import flops
    from rdm_planner.nodes import NodeKind

    count, _, rest = group.partition("x")
    name, _, gpus = rest.rpartition(":")
    if not (
        count.isdecimal() and gpus.isdecimal() and name and 0 < int(count) <= 4096 and 0 < int(gpus) <= 64
    ):
        raise TrainerError(
            f"--nodes is {group[:60]!r}; write how many, which GPU and how many in each: 2xH100:8."
        )
    if name in measured:
        return [NodeKind(name, int(gpus), inter, intra, measured[name][1].memory_gib)] * int(count)
    accelerator = flops.find_accelerator(name)
    if accelerator is None:
        known = ", ".join(one.name for one in flops.ACCELERATORS)
        raise TrainerError(f"The GPU {name!r} is not known; known are {known}.")
    return [NodeKind(accelerator.name, int(gpus), inter, intra, accelerator.memory_gib)] * int(count)


def _models(described: Job, nodes: Sequence[NodeKind]) -> list[TrainerModel]:
    """Return a model for each order of nodes that is tried."""
    from rdm_planner.job import TrainerModel
    from rdm_planner.nodes import tried_orders

    return [TrainerModel(described, order) for order in tried_orders(nodes)]


def _no_layout(job: Config, model: TrainerModel) -> str:
    from rdm_core.config import check
    from rdm_planner import report
    from rdm_planner.job import with_layout
    from rdm_planner.layouts import Layout

    batch = report.nearest_batch(model.job, model.world_size, model.gpus)
    if batch is not None:
        return (
            f"No layout of {model.world_size} GPUs divides optimisation.global_batch_size "
            f"{model.job.batch}; the nearest that one divides is {batch}."
        )
    alone = with_layout(job, Layout(1, 1, 1, 1))
    alone = dataclasses.replace(alone, parallel=dataclasses.replace(alone.parallel, data=None))
    if problems := check(alone):
        return problems[0]
    return (
        f"No layout divides {model.world_size} GPUs, {job.spec.blocks} blocks and "
        f"{job.model.attention_heads} heads; take another number of GPUs."
    )


def _row(job: Config, estimate: Estimate, peaks: dict[str, float], gpus: int) -> dict[str, Any]:
    from rdm_core.cost import flops
    from rdm_planner.job import blocks_of, with_layout

    layout = estimate.layout
    tuned = with_layout(job, layout, estimate.cut)
    batch = job.optimisation.global_batch_size
    known = all(gpu in peaks for gpu in estimate.nodes)
    peak = sum(peaks[gpu] for gpu in estimate.nodes) * gpus * 1e12 if known else None
    overrides = [
        f"parallel.tensor={layout.tensor}",
        f"parallel.pipeline={layout.pipeline}",
        f"optimisation.micro_batch_size={layout.micro_batch}",
        f"parallel.activation_checkpointing={tuned.parallel.activation_checkpointing}",
        f"parallel.zero_stage={layout.zero_stage}",
    ]
    if job.parallel.data is not None:
        overrides.append(f"parallel.data={layout.data}")
    if job.launcher.nodes is not None:
        overrides.append(f"launcher.nodes={len(estimate.nodes)}")
    if job.launcher.devices_per_node is not None:
        overrides.append(f"launcher.devices_per_node={gpus}")
    if tuned.parallel.partition != job.parallel.partition:
        overrides.append(f"parallel.partition={tuned.parallel.partition}")
    return {
        "tensor": layout.tensor,
        "data": layout.data,
        "pipeline": layout.pipeline,
        "micro_batch": layout.micro_batch,
        "checkpointing": layout.checkpointing,
        "zero_stage": layout.zero_stage,
        "partition": "-".join(map(str, blocks_of(estimate.cut))),
        "nodes": list(estimate.nodes),
        "seconds": estimate.seconds,
        "bound": estimate.bound,
        "tokens_per_second": batch * job.spec.tokens_per_sample / estimate.seconds,
        "mfu": flops.flops_per_sample(tuned.spec) * batch / estimate.seconds / peak if peak else None,
        "memory_gib": estimate.memory_gib,
        "stage_memory_gib": list(estimate.stage_memory_gib),
        "parts": dict(estimate.parts),
        "overrides": overrides,
    }


def _show_rest(rejected: dict[str, int], front: list[Point]) -> None:
    """Show why others are no layouts, and the subsets of nodes that are worth their cost."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if rejected:
        console.print("Left out:")
        for reason, count in rejected.items():
            console.print(f"  {count:>5}  {reason}", markup=False)
        console.print()
    if not front:
        return
    table = Table(box=None, padding=(0, 1))
    unit = "GPU-hours" if front[0].price is None else "price"
    for name in ("step s", f"{unit} of 1,000 steps", "tp", "dp", "pp", "micro", "nodes"):
        table.add_column(name, justify="left" if name == "nodes" else "right", no_wrap=True)
    for point in front:
        layout = point.estimate.layout
        nodes = " + ".join(f"{count} x {gpu}" for gpu, count in point.nodes.items())
        degrees = (layout.tensor, layout.data, layout.pipeline, layout.micro_batch)
        table.add_row(f"{point.estimate.seconds:.3f}", f"{1000 * point.cost:,.2f}", *map(str, degrees), nodes)
    console.print(table)
    console.print()


def _show(
    job: Config,
    rows: list[dict[str, Any]],
    layouts: int,
    solved: int,
    config: Path,
    profiles: tuple[Path, ...],
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"\n{job.name}: the fastest of {layouts} layouts ({solved} cuts searched, the others cannot win)."
    )
    if profiles:
        console.print(f"As measured: {', '.join(map(str, profiles))}.\n", markup=False, soft_wrap=True)
    else:
        console.print(
            "[bold yellow]A GUESS from published peaks and bandwidths: nothing has been measured.[/]\n"
            f"[yellow]Measure on one such node: {escape(_measuring(config))}[/]\n",
            soft_wrap=True,
        )
    table = Table(box=None, padding=(0, 1))
    for name in ("step s", "tokens/s", "MFU", "tp", "dp", "pp", "micro", "zero", "ckpt", "GiB", "bubble"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("blocks of each stage", overflow="fold")
    for row in rows:
        table.add_row(
            f"{row['seconds']:.3f}",
            f"{row['tokens_per_second']:,.0f}",
            "" if row["mfu"] is None else f"{row['mfu']:.1%}",
            *(str(row[name]) for name in ("tensor", "data", "pipeline", "micro_batch", "zero_stage")),
            "full" if row["checkpointing"] else "",
            f"{row['memory_gib']:.1f}",
            f"{row['parts']['bubble'] / row['seconds']:.0%}",
            row["partition"] if row["pipeline"] > 1 else "",
        )
    console.print(table)
    best = rows[0]
    if len(set(best["nodes"])) > 1:
        console.print(f"\nThe winner's nodes, in the order of ranks: {', '.join(best['nodes'])}")
    if len(rows) > 1:
        second = rows[1]["slower"]
        console.print(f"\nThe second is {second['share']:.1%} slower, mostly by its {second['most']}.")
    shares = ", ".join(f"{name} {seconds / best['seconds']:.0%}" for name, seconds in best["parts"].items())
    console.print(f"The winner's time goes into: {shares}.")
    command = shlex.join(["rdm-trainer", "dry-run", str(config), *best["overrides"]])
    console.print(f"\nNext: {command}\n", soft_wrap=True, markup=False)
