"""The fastest layout of a job on a cluster: gather what the planner needs about its nodes.

The planner is a part of the trainer that needs no torch; the collection carries it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_provision.environment import make_importable, make_planner_importable
from rdm_provision.errors import InputError, InventoryError

if TYPE_CHECKING:
    from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.cluster_variables import Gpus

    from rdm_provision.api.cluster import Cluster, Node

make_planner_importable()

from rdm_core.config import load  # noqa: E402
from rdm_core.cost import flops  # noqa: E402
from rdm_core.errors import TrainerError  # noqa: E402
from rdm_planner.cluster_profile import ClusterProfile  # noqa: E402
from rdm_planner.profile import Profile, shape_of  # noqa: E402
from rdm_planner.tune import verb  # noqa: E402
from rdm_planner.tune.answer import read_job  # noqa: E402
from rdm_planner.tune.fleet import Fleet, NodeGroup, by_gpu  # noqa: E402
from rdm_planner.tune.options import TuneOptions, tune_options  # noqa: E402
from rdm_planner.tune.validation import chosen, compared  # noqa: E402
from rdm_trainer.engine_step import engine_step  # noqa: E402

__all__ = [
    "Fleet",
    "TuneOptions",
    "chosen",
    "compared",
    "fleet",
    "image_of",
    "keep_profile",
    "load",
    "profile_of",
    "read_job",
    "searched",
    "tune",
    "tune_options",
    "user_errors",
    "with_measured",
]

searched = functools.partial(verb.searched, statement=engine_step)
tune = functools.partial(verb.tune, statement=engine_step)
"""See :mod:`rdm_planner.tune.verb`; steps are timed as our engine runs them."""

PROFILE_FILE = "profile.cfg"
"""Beside the inventory. It is YAML, but Ansible ignores files of this name in an inventory's directory."""


class _PlannerError(InputError):
    """An error of the planner, with its exit code."""

    def __init__(self, error: TrainerError) -> None:
        super().__init__(str(error).removesuffix("."))
        self.exit_code = error.exit_code


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Raise the planner's errors as errors of this package."""
    try:
        yield
    except TrainerError as error:
        raise _PlannerError(error) from None


def profile_of(cluster: Cluster) -> ClusterProfile:
    """Return what was measured on a cluster; an empty profile if there is no file.

    Raises:
        TrainerError: The file cannot be used.
    """
    path = cluster.home / PROFILE_FILE
    return ClusterProfile.read(path) if path.exists() else ClusterProfile()


def with_measured(
    known: ClusterProfile,
    nodes: Mapping[str, str],
    measured: Mapping[str, Any],
    seconds: Mapping[str, float] | None = None,
) -> ClusterProfile:
    """Return a cluster's profile with the results of ``rdm-trainer profile`` in addition.

    Args:
        known: The profile so far.
        nodes: The GPU of each node of that kind.
        measured: What :meth:`rdm_provision.api.jobs.JobVerbs.measured` returned.
        seconds: What each node took for the same work, the measured one first; None if there is one node.

    Raises:
        TrainerError: ``measured`` is no profile.
    """
    return known.with_measured(nodes, Profile.of(measured, "what the job has measured"), seconds)


def keep_profile(cluster: Cluster, profile: ClusterProfile) -> Path:
    """Write a profile beside the inventory, and return the file.

    Raises:
        InputError: it cannot be written.
    """
    make_importable()
    from ansible_collections.rdm.provision.plugins.module_utils.base.atomic_file import write_whole

    path = cluster.home / PROFILE_FILE
    try:
        write_whole(str(path), profile.text().encode(), 0o644)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    return path


def image_of(node: Node) -> str:
    """Return the image that a node's jobs run in; empty on a bare host, or if a template names it."""
    image = str(node.variables.get("container_image") or "")
    return "" if "{{" in image or node.variables.get("rdm_runtime") == "host" else image


def fleet(
    cluster: Cluster,
    limit: str,
    config: Any,
    measure: str,
    *,
    guess: bool = False,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
) -> Fleet:
    """Return a cluster's nodes for the planner, with what was measured on them.

    A profile must match the nodes: their GPUs, the image in the inventory, and, if the nodes were checked,
    their versions of torch and DeepSpeed.

    Args:
        cluster: the nodes' cluster.
        limit: only these nodes (Ansible's ``--limit`` pattern).
        config: the job, as ``rdm_core.config`` reads it.
        measure: the command that measures there, for hints.
        guess: leave out what was measured.
        facts: node -> ``gpu``, ``torch`` and ``deepspeed``, which a check found there; None without a check.

    Raises:
        InputError: the cluster has no nodes, or their GPUs are unknown.
        InventoryError: values of the inventory cannot be used.
        TrainerError: what was measured does not hold for this job, or for these nodes.
    """
    if cluster.only_submits:
        raise InputError(
            f"{cluster.inventory} has no nodes: Slurm chooses those of a job",
            hint="rdm-trainer tune takes them from the command line: --nodes 7xA10:4",
        )
    nodes = [cluster.node(name) for name in cluster.select(limit)]
    gpus = _checked_gpus(nodes)
    known = profile_of(cluster)
    source = str(cluster.home / PROFILE_FILE)
    profiles = {} if guess else by_gpu(((source, one) for one in known.of_job(config)), config, measure)
    found = known.nodes | {name: str(one.get("gpu") or "") for name, one in (facts or {}).items()}
    groups: dict[tuple[str, Any], list[str]] = collections.defaultdict(list)
    for node in nodes:
        gpu = _gpu(node, found.get(node.name, ""), measure)
        own = gpus[node.name]
        if not guess and node.variables.get("rdm_gpu_speed") is None:
            own = own._replace(speed=known.speeds.get(node.name, 1.0))
        groups[gpu, own].append(node.name)
        if one := profiles.get(_canonical(gpu)):
            versions = _versions(node, one[1], (facts or {}).get(node.name, {}))
            one[1].require_versions(versions, where=f"{node.name} has", source=source, command=measure)
    kinds = [
        NodeGroup(gpu, own.slots, names, own.price or None, speed=own.speed)
        for (gpu, own), names in groups.items()
    ]
    leaves_out = guess and any(one.shape == shape_of(config) for one in known.profiles)
    return Fleet(kinds, profiles, measure, left_out=source if leaves_out else "")


def _checked_gpus(nodes: Sequence[Node]) -> dict[str, Gpus]:
    """Return what the inventory has about each node's GPUs, checked as in the plan of every run."""
    make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.cluster_variables import (
        Host,
        check_gpus,
    )

    checked = {node.name: check_gpus(Host(node.name, node.variables)) for node in nodes}
    if problems := [one for _gpus, found in checked.values() for one in found]:
        raise InventoryError("the inventory has values that cannot be used", problems=problems)
    return {name: gpus for name, (gpus, _found) in checked.items()}


def _gpu(node: Node, found: str, measure: str) -> str:
    """Return the name of a node's GPUs: the inventory's or the one found there, which must agree."""
    written = str(node.variables.get("rdm_gpu") or "")
    if "{{" in written:
        raise InputError(f"rdm_gpu of {node.name} is a template", hint="write the GPU itself, as H100")
    if written and found and _canonical(written) != _canonical(found):
        raise InputError(
            f"rdm_gpu of {node.name} is {written}, and the node was found to have {found}",
            hint=f"correct rdm_gpu, or measure the node as it is now: {measure}",
        )
    if gpu := written or found:
        return gpu
    if node.variables.get("rdm_accelerator") == "cpu":
        return "cpu"
    raise InputError(
        f"it is not known which GPUs {node.name} has",
        hint=f"set rdm_gpu in the inventory, as H100; or find out: {measure}",
    )


def _canonical(name: str) -> str:
    """Return our name of a GPU; drivers and users have several."""
    known = flops.find_accelerator(name)
    return known.name if known else name


def _versions(node: Node, profile: Profile, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions on a node that are both known and in the profile."""
    known = {"image": image_of(node), **{name: str(facts.get(name) or "") for name in ("torch", "deepspeed")}}
    return {name: version for name, version in known.items() if version and name in profile.versions}
