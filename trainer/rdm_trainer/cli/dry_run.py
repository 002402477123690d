# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer dry-run``: what a job needs and whether it fits, without any GPU."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rdm_log.wording import duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.table import Table

    from rdm_core.config import Config
    from rdm_core.cost.dry_run import Report, Stage
    from rdm_core.cost.flops import Accelerator

# What well-tuned training reaches of the peak; for the estimate of the time only.
_UTILISATION = 0.4
# The fields of a rank's memory, and their columns.
_COMPONENTS = (
    (("weights",), "weights"),
    (("gradients",), "grads"),
    (("optimiser",), "optim"),
    (("activations", "backward"), "activ"),
    (("logits",), "logits"),
    (("buffers",), "other"),
)
_COLOURS = ("blue", "cyan", "magenta", "yellow", "green", "bright_black")


@click.command("dry-run", epilog="Example:  rdm-trainer dry-run gpt.yaml --world 16 --gpu H200")
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option(
    "--world",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes, one per GPU.  [default: what CONFIG says, else the smallest that works]",
)
@click.option("--gpu", metavar="NAME", help="Tell whether it fits this GPU: H200, A100-80, MI250X, ...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; sizes are bytes.")
def dry_run(
    config: Path, overrides: tuple[str, ...], world: int | None, gpu: str | None, as_json: bool
) -> int:
    """Check CONFIG, with KEY.SUB=VALUE over it, and print what it needs on N processes.

    That is the memory of each GPU, and the FLOPs and the time of a step. Exits with 1 when it does not fit
    the named GPU.
    """
    from rdm_core import config as configuration
    from rdm_core.cost import dry_run as estimate
    from rdm_core.cost import flops
    from rdm_core.errors import DONE, FAILED, TrainerError

    job = configuration.load(config, overrides)
    accelerator = None
    if gpu is not None:
        accelerator = flops.find_accelerator(gpu)
        if accelerator is None:
            known = ", ".join(known.name for known in flops.ACCELERATORS)
            raise TrainerError(f"The GPU {gpu!r} is not known; known are {known}.")
    world = world or job.written_world_size
    configuration.require(job, world, job.launcher.devices_per_node)
    report = estimate.dry_run(job, world)
    if as_json:
        click.echo(json.dumps(_data(report, accelerator), indent=2))
    else:
        _show(job, report, accelerator)
    return FAILED if accelerator is not None and not report.fits(accelerator) else DONE


def _data(report: Report, accelerator: Accelerator | None) -> dict[str, Any]:
    data: dict[str, Any] = {"ok": True, **report.to_dict()}
    if accelerator is not None:
        data["gpu"] = dataclasses.asdict(accelerator)
        data["fits"] = report.fits(accelerator)
    return data


def _show(job: Config, report: Report, accelerator: Accelerator | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, text in _facts(job, report, accelerator):
        facts.add_row(name, text)
    console.print()
    active = f", {_count(report.active_parameters)} of them active" if job.spec.experts else ""
    console.print(f"[bold]{report.name}[/]  {_count(report.parameters)} parameters{active}")
    console.print(facts)
    console.print("\nMemory of one GPU of each stage, GiB:")
    console.print(_table(report, accelerator, wide=console.width >= 110))
    for line in _verdict(job, report, accelerator):
        console.print(line)
    console.print()


def _facts(job: Config, report: Report, accelerator: Accelerator | None) -> Iterator[tuple[str, str]]:
    from rdm_core.cost.dry_run import GIB

    model, parallel = job.model, job.parallel
    layers = str(model.layers) if model.kind != "t5" else f"{model.layers} + {model.decoder_blocks}"
    yield (
        "model",
        f"{model.kind.upper()}: {layers} layers, hidden {model.hidden_size}, {model.attention_heads} heads, "
        f"sequence {model.seq_length}, vocabulary {report.padded_vocab_size:,} (padded)",
    )
    cut = f", partition {parallel.partition}" if report.pipeline > 1 else ""
    context = f" x context {report.context}" if report.context > 1 else ""
    virtual = f" ({parallel.virtual_pipeline} chunks each)" if parallel.virtual_pipeline > 1 else ""
    virtual += f" (eager forwards {parallel.eager_forwards})" if parallel.eager_forwards else ""
    tensor = f"{report.tensor}{' (sequence parallel)' if parallel.sequence_parallel else ''}"
    axes = f"tensor {tensor}{context} x pipeline {report.pipeline}{virtual} x data {report.data}"
    plural = "s" if report.world_size > 1 else ""
    recipe = job.optimisation.fp8_recipe
    fp8 = f" and fp8 ({recipe})" if recipe != "none" else ""
    yield (
        "layout",
        f"{report.world_size} GPU{plural} = {axes}{cut}, ZeRO {parallel.zero_stage}, "
        f"{job.optimisation.precision}{fp8}, engine {job.engine}",
    )
    yield (
        "batch",
        f"{report.global_batch_size:,} = micro batch {report.micro_batch_size} x accumulation "
        f"{report.accumulation} x data {report.data}; {report.tokens_per_step:,} tokens per step",
    )
    ramp = job.optimisation.rampup_batch_size
    if ramp is not None:
        yield (
            "ramp-up",
            f"the batch grows from {ramp.start:,} by {ramp.increment:,} over {ramp.samples:,} samples, "
            f"which are {job.batches.steps(0, ramp.samples):,} steps",
        )
    yield "rates", _rates(job)
    compute = f"{_flop(report.flops_per_step)} per step"
    if report.recomputed_flops_per_step:
        compute += f" and {_flop(report.recomputed_flops_per_step)} of recomputation"
    bubble = f", pipeline bubble {report.bubble:.1%}" if report.pipeline > 1 else ""
    yield "compute", f"{compute}, {report.iterations:,} steps{bubble}"
    if (budget := parallel.activation_memory_budget) < 1:
        yield (
            "activations",
            f"at most, by the budget of {budget:g}; what the compiler then computes again is in neither "
            "compute nor time",
        )
    if host := report.peak.host:
        yield "offloaded", f"at least {host / GIB:,.2f} GiB of the host's memory for each GPU"
    if accelerator is not None:
        yield "time", _time(report, accelerator)


def _rates(job: Config) -> str:
    """Return how learning rate and weight decay go over the training, counted in samples."""
    from rdm_trainer.optim.schedule import LearningRate, WeightDecay

    rate, decay = LearningRate.of(job), WeightDecay.of(job)
    text = f"learning rate {rate.highest:g}"
    if rate.warmup:
        text += f" after {rate.warmup:,.0f} samples of warm-up"
    if rate.form == "wsd":
        text += f", stable until {rate.decay - rate.tail:,.0f}, then {rate.tail_form}"
    elif rate.form != "constant":
        text += f", then {rate.form}"
    if rate.form != "constant":
        text += f" to {rate.lowest:g} at {rate.decay:,.0f}"
    if decay.form == "constant":
        return f"{text}; weight decay {decay.end:g}"
    return f"{text}; weight decay {decay.form} from {decay.start:g} to {decay.end:g}"


def _time(report: Report, accelerator: Accelerator) -> str:
    seconds = report.seconds_per_step(accelerator, _UTILISATION)
    rate = report.tokens_per_step / seconds
    whole = f", {duration(seconds * report.iterations)} in all" if report.iterations else ""
    return (
        f"{duration(seconds)} per step, {rate:,.0f} tokens/s{whole}, if each {accelerator.name} reaches "
        f"{_UTILISATION:.0%} of {accelerator.tflops:g} TFLOP/s outside of the bubble"
    )


def _table(report: Report, accelerator: Accelerator | None, *, wide: bool) -> Table:
    """Return a row per stage: what it has and what one of its ranks keeps in memory, if wide with a bar."""
    from rich import box
    from rich.table import Table

    from rdm_core.cost.dry_run import GIB

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("stage", justify="right", no_wrap=True)
    # The one that gives way where the width is short: a number without its end says something else.
    table.add_column("layers", min_width=6)
    table.add_column("params", justify="right", no_wrap=True)
    for (_, short), colour in zip(_COMPONENTS, _COLOURS, strict=True):
        table.add_column(short, justify="right", style=colour, no_wrap=True)
    table.add_column("all", justify="right", style="bold", no_wrap=True)
    if wide:
        table.add_column("", no_wrap=True)
    limit = accelerator.memory_gib * GIB if accelerator is not None else float("inf")
    whole = report.peak.memory.total if accelerator is None else max(limit, report.peak.memory.total)
    for stage in report.stages:
        sizes = [sum(getattr(stage.memory, field) for field in fields) for fields, _ in _COMPONENTS]
        total = _gib(stage.memory.total)
        table.add_row(
            str(stage.index),
            _layers(stage),
            _count(stage.parameters),
            *[_gib(size) for size in sizes],
            total if stage.memory.total <= limit else f"[red]{total}[/]",
            *([_bar(sizes, whole)] if wide else []),
        )
    return table


_SHORT = {"Embedding": "emb", "Head": "head"}


def _layers(stage: Stage) -> str:
    """Return a stage's layers in short, as ``emb, 11`` or ``14 dec, head``; small ones stay out."""
    parts = []
    for name, group in itertools.groupby(stage.layers):
        count = len(list(group))
        if name.endswith("Block"):
            parts.append(f"{count} {name.removesuffix('Block')[:3].lower()}".strip())
        elif name in _SHORT:
            parts.append(_SHORT[name])
    return ", ".join(parts)


def _bar(sizes: list[int], whole: float, width: int = 24) -> str:
    """Return a bar of coloured pieces, one per component, of full width when the memory is full."""
    text = ""
    done = drawn = 0
    for size, colour in zip(sizes, _COLOURS, strict=True):
        done += size
        end = round(done / whole * width)
        if end > drawn:
            text += f"[{colour}]{'█' * (end - drawn)}[/]"
            drawn = end
    return f"{text}[bright_black]{'·' * (width - drawn)}[/]"


def _verdict(job: Config, report: Report, accelerator: Accelerator | None) -> Iterator[str]:
    from rdm_core.cost import flops
    from rdm_core.cost.dry_run import GIB

    need = report.peak.memory.total / GIB
    if accelerator is None:
        fitting = [known.name for known in flops.ACCELERATORS if report.fits(known)]
        yield f"Fits (by this estimate): {', '.join(fitting) if fitting else 'none of the known GPUs'}."
        return
    if job.optimisation.precision == "bf16" and not accelerator.bf16:
        yield f"[yellow]{accelerator.name} does not compute in bf16; use optimisation.precision=fp16.[/]"
    if job.optimisation.fp8_recipe != "none" and not accelerator.fp8:
        yield f"[yellow]{accelerator.name} does not train in fp8; use optimisation.fp8_recipe=none.[/]"
    if report.fits(accelerator):
        whole = accelerator.memory_gib
        yield f"[green]Fits[/] {accelerator.name}: {need:.1f} of {whole:g} GiB, {whole - need:.1f} left."
        return
    yield (
        f"[red]Does not fit[/] {accelerator.name}: stage {report.peak.index} needs {need:.1f} of "
        f"{accelerator.memory_gib:g} GiB."
    )
    for change, smaller in _alternatives(job, report, accelerator):
        size = smaller.peak.memory.total / GIB
        fits = "[green]fits[/]" if smaller.fits(accelerator) else "still too much"
        yield f"  {change}: {size:.1f} GiB, {fits}"


def _alternatives(job: Config, report: Report, accelerator: Accelerator) -> Iterator[tuple[str, Report]]:
    """Try what would need less, on as many GPUs; return what helps."""
    parallel, optimisation = job.parallel, job.optimisation
    tries: list[dict[str, Any]] = [
        {"parallel.eager_forwards": 0},
        _recomputed(job, report, accelerator),
        {"optimisation.micro_batch_size": max(1, optimisation.micro_batch_size // 2)},
        {"parallel.zero_stage": 1 if parallel.zero_stage == 0 else parallel.zero_stage},
        {"parallel.zero_stage": 3 if parallel.pipeline == 1 else parallel.zero_stage},
        {"parallel.offload_optimizer": "cpu"},
        {"parallel.tensor": parallel.tensor * 2},
        {"parallel.pipeline": parallel.pipeline * 2, "parallel.partition": "even"},
    ]
    for changes in tries:
        smaller = _changed(job, report, changes)
        if smaller and smaller.peak.memory.total < report.peak.memory.total:
            yield " ".join(f"{key}={value}" for key, value in changes.items()), smaller


def _changed(job: Config, report: Report, changes: Mapping[str, Any]) -> Report | None:
    """Return what a job needs with other keys, on as many GPUs; None if it cannot have them."""
    from rdm_core import config as configuration
    from rdm_core.cost.dry_run import dry_run as estimate

    overrides = [f"{key}={value}" for key, value in changes.items()]
    other = configuration.from_dict({**job.to_dict()}, [*overrides, "parallel.data=null"])
    return None if configuration.check(other, report.world_size) else estimate(other, report.world_size)


def _recomputed(job: Config, report: Report, accelerator: Accelerator) -> dict[str, Any]:
    """Return the keys that let as few blocks of each stage compute again as fit; the smallest if none do."""

    def keys(blocks: int) -> dict[str, Any]:
        found: dict[str, Any] = {"parallel.activation_checkpointing": "full"}
        if job.parallel.activation_memory_budget < 1:
            found["parallel.activation_memory_budget"] = 1
        if blocks < most or job.parallel.activation_checkpointing_blocks is not None:
            found["parallel.activation_checkpointing_blocks"] = blocks if blocks < most else "null"
        return found

    most = max(stage.blocks for stage in report.stages)
    sizes: dict[int, int] = {}
    # More blocks can need more memory: the backward pass computes a whole interval of blocks again.
    for blocks in range(1, most + 1):
        smaller = _changed(job, report, keys(blocks))
        if smaller is not None:
            if smaller.fits(accelerator):
                return keys(blocks)
            sizes[blocks] = smaller.peak.memory.total
    return keys(min(sizes, key=lambda blocks: sizes[blocks], default=most))


def _count(number: int) -> str:
    """Return a count of parameters: 345.1 M, 19.6 B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.{2 if number < 10 * size else 1}f} {letter}"
    return str(number)


def _flop(number: float) -> str:
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.1f} {letter}FLOP"
    return f"{number:.0f} FLOP"


def _gib(size: int) -> str:
    from rdm_core.cost.dry_run import GIB

    return f"{size / GIB:.1f}" if size >= 0.05 * GIB else "-"
