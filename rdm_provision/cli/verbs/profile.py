# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs: measure what layers and links take, for tune."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rdm_provision.api import tuning
from rdm_provision.cli.common import Options, emit_json, search_options
from rdm_provision.cli.render.commands import inventory_flag
from rdm_provision.cli.verbs.measuring_jobs import check_nodes, job_stem, watch_to_end
from rdm_provision.wording import names

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster


@click.command(
    epilog="""\b
Examples:
  rdm-provision profile trainer/configs/gpt2-xl.yaml   a node of each kind, and all links
  rdm-provision profile gpt.yaml --micro-batch 16
  rdm-provision profile gpt.yaml --limit node7,node8   a new kind of node
  rdm-provision tune gpt.yaml                          uses the profile
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

    The time of a layer depends on its size: CONFIG.yaml says hidden size, heads, sequence length, vocabulary
    and precision. How many layers it has, its layout and its batch do not matter, so one profile is for all
    jobs whose layers are alike.

    On one node of each kind it measures the forward and backward pass of each kind of layer by micro-batch
    and tensor degree, with and without activation checkpointing, the optimiser, and the links within the
    node. Then it measures the links between nodes, and the speed of each node of the kind. Each is a job like
    a training, with the same launcher and fabric. The results are in profile.cfg beside the inventory; those
    of other layers stay.
    """
    cluster = options.cluster()
    if cluster.only_submits:
        raise click.UsageError(
            f"{cluster.inventory} has no nodes to measure; start `rdm-trainer profile` through Slurm."
        )
    if blocks is not None and blocks[0] >= blocks[1]:
        raise click.UsageError(f"--blocks is {blocks[0]} {blocks[1]}; the second must be larger, as 4 12.")
    sizes = [*(["--micro-batch", str(micro_batch)] if micro_batch else [])]
    sizes += ["--blocks", *map(str, blocks)] if blocks else []
    with tuning.user_errors():
        tuning.load(config, overrides)
        known = tuning.profile_of(cluster)
        gpus = _gpus(options, cluster, config, overrides)
        jobs = _ProfileJobs(options, cluster, config, overrides)
        kinds: dict[str, list[str]] = {}
        for node, gpu in gpus.items():
            kinds.setdefault(gpu, []).append(node)
        results = {}
        for number, (gpu, nodes) in enumerate(kinds.items()):
            measured = jobs.run(f"{number}", nodes[:1], sizes)
            seconds: dict[str, float] = {}
            if len(gpus) > 1:
                # A kind with one node: measure the links to nodes of other kinds.
                linked = nodes if len(nodes) > 1 else list(gpus)
                measured["links"]["across"], taken = jobs.links_across(f"{number}-links", linked)
                # The other nodes are compared with the one whose layers were measured.
                if nodes[0] in taken:
                    seconds = {name: taken[name] for name in nodes if name in taken}
            if image := tuning.image_of(cluster.node(nodes[0])):
                measured["versions"]["image"] = image
            gpu_of = dict.fromkeys(nodes, str(measured["gpu"]))
            known = tuning.with_measured(known, gpu_of, measured, seconds)
            results[gpu] = measured
            # Finished measurements are kept, even if the next kind fails.
            path = tuning.keep_profile(cluster, known)
    if options.as_json:
        emit_json(
            {
                "ok": True,
                "exit_code": 0,
                "output": str(path),
                "nodes": gpus,
                "speeds": {name: known.speeds[name] for name in gpus if name in known.speeds},
                "profiles": [*results.values()],
            }
        )
        return 0
    for gpu, measured in results.items():
        click.echo(_line(gpu, kinds[gpu], measured))
        for name in kinds[gpu]:
            if share := known.speeds.get(name):
                click.echo(f"  {name} computes at {share:g} of the speed of {kinds[gpu][0]}")
    click.echo(f"Written to {path}.")
    words = shlex.join([str(config), *overrides])
    click.echo(f"\nNext: rdm-provision tune{inventory_flag()} {words}")
    return 0


def _gpus(options: Options, cluster: Cluster, config: Path, overrides: Sequence[str]) -> dict[str, str]:
    """Check the nodes, and return the GPU of each."""
    facts = check_nodes(options, cluster, config, overrides)
    found = {name: str(one["gpu"]) for name, one in facts.items() if one.get("gpu")}
    if lacking := [name for name in cluster.select(options.limit) if name not in found]:
        from rdm_provision.errors import InputError

        hint = f"rdm-provision exec{inventory_flag()} -- nvidia-smi"
        if cluster.is_bare:
            hint = f"ansible {lacking[0]} -i {shlex.quote(str(cluster.inventory))} -a nvidia-smi"
        raise InputError(f"{lacking[0]} does not report which GPUs it has", hint=hint)
    return found


class _ProfileJobs:
    """The measuring jobs; one that fails ends the program with the job's reason."""

    def __init__(self, options: Options, cluster: Cluster, config: Path, overrides: Sequence[str]) -> None:
        self._options, self._cluster, self._config, self._overrides = options, cluster, config, overrides
        self._stem = job_stem("profile", config)

    def run(self, suffix: str, nodes: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
        """Run ``rdm-trainer profile`` on some nodes, and return what it measured."""
        name = f"{self._stem}-{suffix}"
        more = {**self._options.run, "limit": ",".join(nodes)}
        run = self._cluster.profile(self._config, self._overrides, options=options, name=name, **more)
        if not self._options.as_json:
            what = "links between" if "--links-only" in options else "layers on"
            click.echo(f"Measuring the {what} {names(nodes)}", err=True)
        result, state = watch_to_end(self._options, self._cluster, run)
        found = self._cluster.measured(result)
        if not found:
            from rdm_provision.errors import RdmError

            reason = state.reason.rstrip(".") if state is not None else ""
            raise RdmError(
                f"{name} has measured nothing: {reason or 'it has ended early'}",
                hint=f"rdm-provision logs{inventory_flag()} {name} --err",
            )
        return found

    def links_across(self, suffix: str, nodes: Sequence[str]) -> tuple[dict[str, Any], dict[str, float]]:
        """Return the links between some nodes, and each node's seconds for the same work."""
        found = self.run(suffix, nodes, ["--links-only"])
        links: dict[str, dict[str, Any]] = found["links"]
        if "across" not in links:
            from rdm_provision.errors import RdmError

            raise RdmError(
                f"the ranks of {names(nodes)} took themselves for those of one node, and measured no "
                "link between nodes",
                hint="see that RDM_NODE or the host name differs on each",
            )
        return links["across"], dict(found.get("nodes") or {})


def _line(gpu: str, nodes: Sequence[str], measured: Mapping[str, Any]) -> str:
    """Return what was measured on nodes of a kind, as one line."""
    degrees = ", ".join(measured["layers"])
    sizes = max(
        int(size) for kinds in measured["layers"].values() for points in kinds.values() for size in points
    )
    links = ""
    for where, kinds in measured["links"].items():
        what = "within a node" if where == "within" else "between nodes"
        links += f"; {kinds['all_reduce']['bandwidth'] / 1e9:.1f} Gbit/s {what}"
    return f"{gpu} ({names(nodes)}): tensor degree {degrees}, micro-batches up to {sizes}{links}"
