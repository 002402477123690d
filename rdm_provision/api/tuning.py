"""The fastest layout of a job on a cluster: what the planner is told of its nodes.

The planner is the trainer's part that needs no torch; the collection carries it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdm_provision.environment import make_planner_importable
from rdm_provision.errors import InputError

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster, Node

make_planner_importable()

from rdm_core.config import load  # noqa: E402
from rdm_core.errors import TrainerError  # noqa: E402
from rdm_planner.cluster_profile import ClusterProfile  # noqa: E402
from rdm_planner.profile import Profile  # noqa: E402
from rdm_planner.tune import verb  # noqa: E402
from rdm_planner.tune.answer import read_job  # noqa: E402
from rdm_planner.tune.fleet import FASTEST, Fleet, NodeGroup, by_gpu  # noqa: E402
from rdm_planner.tune.options import TuneOptions, tune_options  # noqa: E402
from rdm_planner.tune.validation import chosen, compared  # noqa: E402
from rdm_trainer.engine_step import engine_step  # noqa: E402

__all__ = [
    "Fleet",
    "TuneOptions",
    "chosen",
    "compared",
    "fleet",
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
"""See :mod:`rdm_planner.tune.verb`; the steps are those of our engine."""

PROFILE_FILE = "profile.cfg"
"""Beside the inventory. YAML; of a directory with an inventory Ansible does not read files of this name."""


_AS = {"rdm_slots": "8", "rdm_gpu_price": "2.5", "rdm_gpu_speed": "0.9"}
"""What the inventory's numbers look like."""


class _PlannerError(InputError):
    """What the planner refuses, with its exit code."""

    def __init__(self, error: TrainerError) -> None:
        super().__init__(str(error).removesuffix("."))
        self.exit_code = error.exit_code


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Raise what the planner refuses as an error of this package."""
    try:
        yield
    except TrainerError as error:
        raise _PlannerError(error) from None


def profile_of(cluster: Cluster) -> ClusterProfile:
    """Return what was measured on a cluster; nothing where there is no file.

    Raises:
        TrainerError: The file cannot be used.
    """
    path = cluster.home / PROFILE_FILE
    return ClusterProfile.read(path) if path.exists() else ClusterProfile()


def with_measured(known: ClusterProfile, nodes: Mapping[str, str], told: Mapping[str, Any]) -> ClusterProfile:
    """Return a cluster's profile with what ``rdm-trainer profile`` told in addition.

    Args:
        known: What was measured before.
        nodes: The GPU of each node of that kind.
        told: What :meth:`rdm_provision.api.jobs.JobVerbs.measured` returned.

    Raises:
        TrainerError: It is no profile.
    """
    return known.with_measured(nodes, Profile.of(told, "what the job has measured"))


def keep_profile(cluster: Cluster, profile: ClusterProfile) -> Path:
    """Write what was measured beside the inventory, and return the file.

    Raises:
        InputError: it cannot be written.
    """
    path = cluster.home / PROFILE_FILE
    successor = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        successor.write_text(profile.text(), encoding="utf-8")
        successor.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    return path


def fleet(cluster: Cluster, limit: str, config: Any, measure: str, *, guess: bool = False) -> Fleet:
    """Return what the planner is told of a cluster's nodes.

    Args:
        cluster: whose.
        limit: only these nodes (Ansible's ``--limit`` pattern).
        config: the job, as ``rdm_core.config`` reads it.
        measure: the command that measures there.
        guess: leave out what was measured.

    Raises:
        InputError: the cluster has no nodes, or their GPUs are not known.
        TrainerError: what was measured says nothing of this job.
    """
    if cluster.only_submits:
        raise InputError(
            f"{cluster.inventory} has no nodes: Slurm chooses those of a job",
            hint="rdm-trainer tune takes them from the command line: --nodes 7xA10:4",
        )
    known = profile_of(cluster)
    chosen = [cluster.node(name) for name in cluster.select(limit)]
    groups: dict[tuple[str, int, float, float], list[str]] = collections.defaultdict(list)
    for node in chosen:
        slots = _number(node, "rdm_slots", 8, lambda value: value >= 1 and value == int(value))
        price = _number(node, "rdm_gpu_price", 0.0, lambda value: value >= 0)
        speed = _number(node, "rdm_gpu_speed", 1.0, lambda value: 0 < value <= FASTEST)
        groups[_gpu(node, known.nodes, measure), int(slots), price, speed].append(node.name)
    source = str(cluster.home / PROFILE_FILE)
    profiles = {} if guess else by_gpu(((source, one) for one in known.of_job(config)), config, {}, measure)
    kinds = [
        NodeGroup(gpu, gpus, names, price or None, speed=speed)
        for (gpu, gpus, price, speed), names in groups.items()
    ]
    return Fleet(kinds, profiles, measure)


def _gpu(node: Node, found: Mapping[str, str], measure: str) -> str:
    """Return the name of a node's GPUs: what the inventory says, or what was found there."""
    written = str(node.variables.get("rdm_gpu") or "")
    if "{{" in written:
        raise InputError(f"rdm_gpu of {node.name} is a template", hint="write the GPU itself, as H100")
    if gpu := written or found.get(node.name, ""):
        return gpu
    if node.variables.get("rdm_accelerator") == "cpu":
        return "cpu"
    raise InputError(
        f"it is not known which GPUs {node.name} has",
        hint=f"set rdm_gpu in the inventory, as H100; or find out: {measure}",
    )


def _number(node: Node, name: str, otherwise: float, fits: Callable[[float], bool]) -> float:
    """Return a number that the inventory has for a node."""
    value = node.variables.get(name, otherwise)
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and fits(found)):
        raise InputError(f"{name} of {node.name} is {value!r}", hint=f"write it as {name}: {_AS[name]}")
    return found
