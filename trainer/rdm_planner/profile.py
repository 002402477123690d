# SPDX-License-Identifier: GPL-3.0-or-later
"""Times that ``rdm-trainer profile`` measured on a GPU: the file, and the planner's times from such files."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdm_core.config.layout_checks import memory_budget_problems
from rdm_core.config.model_checks import MODEL_CHECKS
from rdm_core.config.schema import Config
from rdm_core.cost import flops
from rdm_core.errors import ConfigError, TrainerError
from rdm_planner.nodes import NodeKind
from rdm_planner.times import Link

FORMAT = 1
"""Version of the file's format."""

LEAST_SECONDS = 1e-9
"""Floor of measured times: layer times are differences, and noise makes some of them negative."""

# With noise, a larger micro-batch may take a little less time than a smaller one.
_LEAST_GROWTH = 0.8

# Profiles of models without experts lack these keys.
_OF_EXPERTS = ("experts", "router_top_k", "norm_topk_prob", "aux_loss_coeff", "capacity_factor")
_NOT_SHAPE = (
    *("layers", "decoder_layers", "positions", "padded_vocab_size"),
    *("rope_theta", "rope_scaling", "norm_epsilon", "init_std", "hidden_dropout", "attention_dropout"),
    *("activation", "softmax_scale", "scales_logits", "relative_max_distance", "head_bias"),
)


def shape_of(config: Config) -> dict[str, Any]:
    """Return what a layer's time depends on, apart from micro-batch and tensor degree.

    The number of layers is not part of it.
    """
    left_out = {*_NOT_SHAPE, *(() if config.spec.experts else _OF_EXPERTS)}
    if not config.spec.relative_buckets:
        left_out.add("relative_buckets")
    spec = {key: value for key, value in dataclasses.asdict(config.spec).items() if key not in left_out}
    return {
        **spec,
        "rope": config.spec.is_rotary,
        "dropout": config.spec.hidden_dropout > 0,
        "attention_dropout": config.spec.attention_dropout > 0,
        "precision": config.optimisation.precision,
        "fp8_recipe": config.optimisation.fp8_recipe,
        "compile": config.optimisation.compile,
        "activation_memory_budget": config.parallel.activation_memory_budget,
        "engine": config.engine,
        "documents": config.knows_documents,
    }


def require_modelled(config: Config) -> None:
    """Reject a job whose model cannot be built, or whose speed the cost model does not know.

    Raises:
        ConfigError: The keys of the model do not fit each other.
        TrainerError: It offloads to the host's memory, replays CUDA graphs, or has a memory budget that no
            layout can keep.
    """
    # The job's own tensor degree is neither measured nor searched, and no tokenizer is read.
    data = config.data if config.data.tokenizer is not None else dataclasses.replace(config.data, mock=True)
    parallel = dataclasses.replace(config.parallel, tensor=1)
    alone = dataclasses.replace(config, parallel=parallel, data=data)
    if problems := [problem for check in MODEL_CHECKS for problem in check(alone)]:
        raise ConfigError(problems, source=f"the configuration of {config.name}")
    if config.optimisation.cuda_graphs:
        raise TrainerError(
            "optimisation.cuda_graphs is true, and the cost model knows only passes without graphs; measure "
            "and search layouts with optimisation.cuda_graphs=false."
        )
    for key in ("offload_optimizer", "offload_parameters"):
        if (value := getattr(config.parallel, key)) != "none":
            raise TrainerError(
                f"parallel.{key} is {value}, and the cost model does not know how long copies to the host "
                f"take; measure and search layouts with parallel.{key}=none."
            )
    # Layouts with checkpointing are measured and searched without a budget.
    parallel = dataclasses.replace(config.parallel, activation_checkpointing="none")
    for problem in memory_budget_problems(dataclasses.replace(config, parallel=parallel)):
        raise TrainerError(problem)


def packages_of(engine: str) -> tuple[str, ...]:
    """Return the packages whose versions an engine's times depend on."""
    return ("torch",) if engine == "native" else ("torch", "deepspeed")


def _shape(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shape in a file, with the values that earlier releases implied but did not write."""
    implied = {"rope": False, "qk_norm": False, "engine": "deepspeed", "documents": False}
    found = {**implied, "fp8_recipe": "none", "activation_memory_budget": 1.0, **measured}
    return found | ({"biases": "all"} if found.get("biases") is True else {})


@dataclass(frozen=True)
class LayerTimes:
    """The times of one layer for one micro-batch, seconds.

    Args:
        forward: The forward pass.
        backward: The backward pass.
        checkpointed: The backward pass when it first recomputes the forward pass; None if not measured.
    """

    forward: float
    backward: float
    checkpointed: float | None


@dataclass(frozen=True)
class Profile:
    """The measurements of one kind of GPU.

    Args:
        gpu: Its name.
        shape: The layers' shape, from :func:`shape_of`.
        versions: Versions of the engine's packages, and the container's ``image`` if a cluster's nodes ran
            one.
        date: When it was measured, ISO 8601.
        memory_gib: GPU memory that a program can use.
        optimiser: Seconds of the optimiser's step per parameter.
        layers: Tensor degree → kind of layer → micro-batch → times.
        links: ``within`` a node or ``across`` nodes → ``point_to_point`` or ``all_reduce`` → the link.
    """

    gpu: str
    shape: Mapping[str, Any]
    versions: Mapping[str, str]
    date: str
    memory_gib: float
    optimiser: float
    layers: Mapping[int, Mapping[str, Mapping[int, LayerTimes]]]
    links: Mapping[str, Mapping[str, Link]]

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Read a profile.

        Raises:
            TrainerError: The file cannot be read, or is not a profile.
        """
        try:
            return cls.of(json.loads(path.read_text(encoding="utf-8")), str(path))
        except OSError as error:
            raise TrainerError(f"The profile {path} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise TrainerError(f"{path} is no profile of rdm-trainer profile: {error}.") from None

    @classmethod
    def of(cls, data: Any, source: str) -> Profile:
        """Return a profile from plain data.

        Args:
            data: The result of :meth:`plain`.
            source: Where the data come from, for messages.

        Raises:
            TrainerError: The data are not a profile.
        """
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"its format is {data['format']!r}, and not {FORMAT}")
            found = cls(
                gpu=str(data["gpu"]),
                shape=_shape(data["shape"]),
                versions=dict(data["versions"]),
                date=str(data["date"]),
                memory_gib=_above_zero(data["memory_gib"]),
                optimiser=_at_least_zero(data["optimiser"]),
                layers={
                    int(tensor): {
                        kind: {int(size): _layer_times(one) for size, one in points.items()}
                        for kind, points in kinds.items()
                    }
                    for tensor, kinds in data["layers"].items()
                },
                links={
                    where: {
                        what: Link(_at_least_zero(link["latency"]), _above_zero(link["bandwidth"]))
                        for what, link in links.items()
                    }
                    for where, links in data["links"].items()
                },
            )
            if not found.layers or not all(
                points for kinds in found.layers.values() for points in kinds.values()
            ):
                raise ValueError("it has no times of layers")
        except KeyError as error:
            raise TrainerError(f"{source} is no profile of rdm-trainer profile: it lacks {error}.") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise TrainerError(f"{source} is no profile of rdm-trainer profile: {error}.") from None
        return found

    def text(self) -> str:
        """Return the file's content."""
        return json.dumps(self.plain(), indent=2, sort_keys=False) + "\n"

    def plain(self) -> dict[str, Any]:
        """Return the profile as the plain data that its file contains."""
        return {
            "format": FORMAT,
            **dataclasses.asdict(self),
            "layers": {
                str(tensor): {
                    kind: {str(size): dataclasses.asdict(one) for size, one in sorted(points.items())}
                    for kind, points in kinds.items()
                }
                for tensor, kinds in sorted(self.layers.items())
            },
        }

    def require(self, config: Config, *, source: str, command: str) -> None:
        """Reject a profile that does not apply to a job.

        Args:
            config: The job.
            source: The profile's file, for the message.
            command: The command that measures the right one, for the message.

        Raises:
            TrainerError: The profile is of another shape, or has times that no GPU can reach.
        """
        hint = f"measure it again: {command}"
        for key, wanted in shape_of(config).items():
            if (known := self.shape.get(key)) != wanted:
                what = f"{source} was measured for {key} {known!r}, and the job has {wanted!r}; "
                other = f"take engine={known}, or measure it again with engine={wanted}: {command}"
                raise TrainerError(what + (other if key == "engine" else hint))
        kinds = {kind for kind in config.spec.layer_names() if not kind.endswith("Norm")}
        for tensor, times in self.layers.items():
            if missing := sorted(kinds - times.keys()):
                raise TrainerError(f"{source} has no times of {missing[0]} at tensor degree {tensor}; {hint}")
        if (problem := self._implausible(config)) is not None:
            raise TrainerError(f"{source} cannot be right: {problem}. On an idle host, {hint}")

    def require_versions(self, versions: Mapping[str, str], *, where: str, source: str, command: str) -> None:
        """Reject a profile that was measured with other software.

        Args:
            versions: The known versions where the job will run: the engine's packages and the container's
                image.
            where: Where they were found, for the message: ``n1 has``, ``here is``.
            source: The profile's file, for the message.
            command: The command that measures the right one, for the message.

        Raises:
            TrainerError: A version differs.
        """
        for package, version in versions.items():
            if self.versions.get(package) != version:
                raise TrainerError(
                    f"{source} was measured with {package} {self.versions.get(package)}, and {where} "
                    f"{version}; measure it again: {command}"
                )

    def lost_in_noise(self) -> str:
        """Return the first block whose measured time is lost in noise; empty if there is none."""
        for tensor, kinds in self.layers.items():
            for kind, points in kinds.items():
                for size, one in sorted(points.items()):
                    measured = [seconds for seconds in dataclasses.astuple(one) if seconds is not None]
                    if kind.endswith("Block") and min(measured) <= LEAST_SECONDS:
                        return f"{kind} at tensor degree {tensor} and micro-batch {size}"
        return ""

    def _implausible(self, config: Config) -> str | None:
        """Return which time of a block is impossible, and why; None without one, or without a published peak.

        A block's FLOPs at the GPU's peak are a lower bound on its time, doubled for a backward pass. The peak
        in fp8 is twice that in bf16.
        """
        accelerator = flops.find_accelerator(self.gpu)
        if accelerator is None:
            return None
        peak = accelerator.tflops * (1 if config.optimisation.fp8_recipe == "none" else 2)
        work = {
            layer.name: flops.forward_flops(config.spec, layer) / (peak * 1e12)
            for layer in flops.layer_sizes(config.spec)
            if layer.name.endswith("Block")
        }
        for (tensor, kinds), (kind, least) in itertools.product(self.layers.items(), work.items()):
            for name, passes in (("forward", 1), ("backward", 2), ("checkpointed", 2)):
                smaller, before = 0, 0.0
                for size, one in sorted(kinds[kind].items()):
                    seconds: float | None = getattr(one, name)
                    if seconds is None:
                        continue
                    where = f"the {name} time of {kind} at tensor degree {tensor}"
                    if seconds < (most := passes * size * least / tensor):
                        return (
                            f"{where} and micro-batch {size} is {seconds:.2g} s, and {accelerator.name} at "
                            f"its peak of {peak:g} TFLOP/s needs {most:.2g} s"
                        )
                    if seconds < _LEAST_GROWTH * before:
                        return (
                            f"{where} is {seconds:.2g} s at micro-batch {size}, and more at {smaller}: "
                            f"{before:.2g} s"
                        )
                    smaller, before = size, seconds
        return None


def interpolate(points: Mapping[int, float], size: float) -> float:
    """Return the time of a micro-batch, interpolated linearly between measured sizes.

    Outside the measured sizes, a sample takes as long as at the nearest one: above the largest, the GPU is
    busy; below the smallest, nothing better is known.

    Args:
        points: Micro-batch → seconds; at least one.
        size: The micro-batch.
    """
    sizes = sorted(points)
    index = bisect.bisect_left(sizes, size)
    if index < len(sizes) and sizes[index] == size:
        return points[sizes[index]]
    if index in (0, len(sizes)):
        nearest = sizes[min(index, len(sizes) - 1)]
        return points[nearest] * size / nearest
    low, high = sizes[index - 1], sizes[index]
    share = (size - low) / (high - low)
    return (1 - share) * points[low] + share * points[high]


@dataclass(frozen=True)
class MeasuredTimes:
    """See :class:`rdm_planner.times.Times`. Links that were not measured have the nodes' published bandwidth.

    Times of layers and of the optimiser are the measured ones divided by the node's speed.

    Args:
        profiles: The profile of each GPU, by its name.
        nodes: A node with each GPU, by its name.
    """

    profiles: Mapping[str, Profile]
    nodes: Mapping[str, NodeKind]

    @property
    def is_measured(self) -> bool:
        """See :class:`rdm_planner.times.Times`."""
        return True

    def tensors(self, gpu: str) -> Collection[int]:
        """See :class:`rdm_planner.times.Times`."""
        return self.profiles[gpu].layers.keys()

    def forward(self, gpu: str, kind: str, micro_batch: float, tensor: int) -> float:
        """See :class:`rdm_planner.times.Times`. The head's time includes the norm's."""
        points = self.profiles[gpu].layers[tensor].get(kind, {})
        if not points:
            return 0.0
        seconds = interpolate({size: one.forward for size, one in points.items()}, micro_batch)
        return seconds / self.nodes[gpu].speed

    def backward(self, gpu: str, kind: str, micro_batch: float, tensor: int, *, checkpointed: bool) -> float:
        """See :class:`rdm_planner.times.Times`.

        Raises:
            TrainerError: A checkpointed pass was not measured.
        """
        points = self.profiles[gpu].layers[tensor].get(kind, {})
        if not points:
            return 0.0
        times = {}
        for size, one in points.items():
            seconds = one.checkpointed if checkpointed else one.backward
            if seconds is None:
                raise TrainerError(
                    f"The profile of {gpu} was measured with --no-checkpointing; search layouts with "
                    "parallel.activation_checkpointing=none, or measure it again without that option."
                )
            times[size] = seconds
        return interpolate(times, micro_batch) / self.nodes[gpu].speed

    def optimiser(self, gpu: str) -> float:
        """See :class:`rdm_planner.times.Times`."""
        return self.profiles[gpu].optimiser / self.nodes[gpu].speed

    def point_to_point(self, here: str, there: str, *, across: bool) -> Link:
        """See :class:`rdm_planner.times.Times`."""
        return _slower([self._link(gpu, "point_to_point", across) for gpu in (here, there)])

    def all_reduce(self, gpus: Collection[str], *, across: bool) -> Link:
        """See :class:`rdm_planner.times.Times`."""
        return _slower([self._link(gpu, "all_reduce", across) for gpu in gpus])

    def memory_gib(self, gpu: str) -> float:
        """See :class:`rdm_planner.times.Times`."""
        return self.profiles[gpu].memory_gib

    def _link(self, gpu: str, what: str, across: bool) -> Link:
        measured = self.profiles[gpu].links.get("across" if across else "within", {}).get(what)
        node = self.nodes[gpu]
        return measured or Link(0.0, node.inter if across else node.intra)


def _slower(links: Collection[Link]) -> Link:
    return Link(max(one.latency for one in links), min(one.bandwidth for one in links))


def _layer_times(data: Mapping[str, Any]) -> LayerTimes:
    again = data["checkpointed"]
    return LayerTimes(
        _at_least_zero(data["forward"]),
        _at_least_zero(data["backward"]),
        None if again is None else _at_least_zero(again),
    )


def _at_least_zero(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{str(value)[:40]!r} is no time, bandwidth or memory")
    return float(value)


def _above_zero(value: Any) -> float:
    if not _at_least_zero(value):
        raise ValueError("0 is no bandwidth or memory")
    return float(value)
