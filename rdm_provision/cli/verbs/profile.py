# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-provision profile``: measure what ``tune`` predicts from, on the cluster."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rdm_provision.api import tuning
from rdm_provision.cli.common import Options, emit_json, search_options
from rdm_provision.cli.render.commands import inventory_flag

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster
    from rdm_provision.results.events import RunResult
    from rdm_provision.results.job_state import JobState
    from rdm_provision.runner.run import Run

__all__ = ["profile"]


@click.command(
    epilog="""\b
Examples:
  rdm-provision profile gpt2-xl.yaml                       a node of each kind, and all links
  rdm-provision profile gpt2-xl.yaml --micro-batch 16
  rdm-provision profile gpt2-xl.yaml --limit node7,node8   a kind that is new
  rdm-provision tune gpt2-xl.yaml                          what it is for
"""
)
@click.argument("config", type=click.Path(path_type=Path), metavar="CONFIG.yaml")
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option(
    "--micro-batch",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="The largest; powers of two up to it are measured.  [default: the job's, at least 8]",
)
@click.option(
    "--blocks",
    nargs=2,
    type=click.IntRange(1, 1000),
    metavar="FEW MORE",
    help="How many blocks the two measured models have.  [default: 4 12]",
)
@search_options
def profile(
    options: Options,
    config: Path,
    overrides: tuple[str, ...],
    micro_batch: int | None,
    blocks: tuple[int, int] | None,
) -> int:
    """Measure, in minutes, how fast the cluster computes the layers of CONFIG.yaml, and its links.

    On one node of each kind: forward and backward pass of each kind of layer by micro-batch and tensor
    degree, with and without activation checkpointing, the optimiser, the links within the node. Then the
    links between nodes. Each is a job as a training is, through the job's launcher and over the same fabric.
    What is found lies beside the inventory, in profile.cfg (YAML), with versions, GPUs and date; what was
    measured of other layers stays.
    """
    cluster = options.cluster()
    if cluster.only_submits:
        raise click.UsageError(
            f"{cluster.inventory} has no nodes to measure; start `rdm-trainer profile` through Slurm."
        )
    if blocks is not None and blocks[0] >= blocks[1]:
        raise click.UsageError(f"--blocks is {blocks[0]} {blocks[1]}; the second must be larger, as 4 12.")
    given = [*(["--micro-batch", str(micro_batch)] if micro_batch else [])]
    given += ["--blocks", *map(str, blocks)] if blocks else []
    with tuning.user_errors():
        tuning.load(config, overrides)
        known = tuning.profile_of(cluster)
        measuring = _Measuring(options, cluster, config, overrides)
        gpus = measuring.gpus()
        kinds: dict[str, list[str]] = {}
        for node, gpu in gpus.items():
            kinds.setdefault(gpu, []).append(node)
        found = {}
        for number, (gpu, nodes) in enumerate(kinds.items()):
            told = measuring.job(f"{number}", nodes[:1], given)
            if len(gpus) > 1:
                # Of a kind with one node, those to nodes of other kinds.
                beside = nodes if len(nodes) > 1 else list(gpus)
                told["links"]["across"] = measuring.across(f"{number}-links", beside)
            known = tuning.with_measured(known, dict.fromkeys(nodes, str(told["gpu"])), told)
            found[gpu] = told
            # What is measured stays, whatever becomes of the next kind.
            path = tuning.keep_profile(cluster, known)
    if options.as_json:
        emit_json(
            {"ok": True, "exit_code": 0, "output": str(path), "nodes": gpus, "profiles": [*found.values()]}
        )
        return 0
    for gpu, told in found.items():
        click.echo(_line(gpu, kinds[gpu], told))
    click.echo(f"Written to {path}.")
    words = shlex.join([str(config), *overrides])
    click.echo(f"\nNext: rdm-provision tune{inventory_flag()} {words}")
    return 0


class _Measuring:
    """The jobs that measure; a job that fails ends the program, with what it said."""

    def __init__(self, options: Options, cluster: Cluster, config: Path, overrides: Sequence[str]) -> None:
        self._options, self._cluster, self._config, self._overrides = options, cluster, config, overrides
        self._stem = re.sub(r"[^a-z0-9_.-]+", "-", config.stem.lower()).strip("-._")[:24]
        self._at = time.strftime("%m%d-%H%M%S")

    def gpus(self) -> dict[str, str]:
        """Return what each node calls its GPUs, after a check whether it can run a job."""
        run = self._cluster.profile(self._config, self._overrides, check=True, **self._options.run)
        found = self._cluster.devices(self._watch(run)[0])
        if lacking := [name for name in self._cluster.select(self._options.limit) if name not in found]:
            from rdm_provision.errors import InputError

            hint = f"rdm-provision exec{inventory_flag()} -- nvidia-smi"
            if self._cluster.is_bare:
                hint = f"ansible {lacking[0]} -i {shlex.quote(str(self._cluster.inventory))} -a nvidia-smi"
            raise InputError(f"{lacking[0]} does not say which GPUs it has", hint=hint)
        return found

    def job(self, which: str, nodes: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
        """Run ``rdm-trainer profile`` on some nodes, and return what it found."""
        name = f"profile-{self._stem}-{self._at}-{which}"
        more = {**self._options.run, "limit": ",".join(nodes)}
        run = self._cluster.profile(self._config, self._overrides, options=options, name=name, **more)
        if not self._options.as_json:
            what = "links between" if "--links-only" in options else "layers on"
            click.echo(
                f"Measuring the {what} {', '.join(nodes[:8])}{'…' if len(nodes) > 8 else ''}", err=True
            )
        result, state = self._watch(run)
        found = self._cluster.measured(result)
        if not found:
            from rdm_provision.errors import RdmError

            reason = state.reason if state is not None else "nobody watched it to its end"
            raise RdmError(
                f"{name} has measured nothing: {reason.rstrip('.') or 'it has ended early'}",
                hint=f"rdm-provision logs{inventory_flag()} {name} --err",
            )
        return found

    def across(self, which: str, nodes: Sequence[str]) -> dict[str, Any]:
        """Return the links between some nodes."""
        links: dict[str, dict[str, Any]] = self.job(which, nodes, ["--links-only"])["links"]
        if "across" not in links:
            from rdm_provision.errors import RdmError

            raise RdmError(
                f"the ranks of {', '.join(nodes[:8])} took themselves for those of one node, and measured no "
                "link between nodes",
                hint="see that RDM_NODE or the host name differs on each",
            )
        return links["across"]

    def _watch(self, run: Run) -> tuple[RunResult, JobState | None]:
        from rdm_provision.cli.render import job_view, view

        result, state = job_view.watch(run, self._cluster.name, silent=self._options.as_json)
        if state is None and not result.ok:
            if self._options.as_json:
                emit_json(result.to_json())
            elif not view.unhappy_end(result):
                view.recap(view.err(), result)
            raise click.exceptions.Exit(result.exit_code)
        return result, state


def _line(gpu: str, nodes: Sequence[str], told: Mapping[str, Any]) -> str:
    """Return what was measured on nodes of a kind, in a line."""
    from rdm_provision.cli.render import view

    degrees = ", ".join(told["layers"])
    sizes = max(
        int(size) for kinds in told["layers"].values() for points in kinds.values() for size in points
    )
    links = ""
    for where, kinds in told["links"].items():
        what = "within a node" if where == "within" else "between nodes"
        links += f"; {kinds['all_reduce']['bandwidth'] / 1e9:.1f} Gbit/s {what}"
    return f"{gpu} ({view.names(nodes)}): tensor degree {degrees}, micro-batches up to {sizes}{links}"
