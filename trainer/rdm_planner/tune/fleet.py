# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes to search a layout for, with their measurements and prices."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rdm_core.config.schema import Config
from rdm_core.cost import flops
from rdm_core.errors import TrainerError
from rdm_planner.nodes import NodeKind
from rdm_planner.profile import MeasuredTimes, Profile
from rdm_planner.times import Times
from rdm_planner.tune.options import TuneOptions

_OWN = {"speed": 1.0, "price": None, "inter": None, "intra": None}
"""Attributes that may differ between nodes with the same GPU, with their defaults."""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are alike.

    Args:
        gpu: The GPU, by our name or its driver's.
        gpus: GPUs of each node.
        names: The nodes' names; empty strings if they have none.
        price: Price of a GPU-hour; ``--price`` overrides it.
        inter: Bandwidth to other nodes, Gbit/s; ``--inter`` if None.
        intra: Bandwidth between the node's GPUs, Gbit/s; ``--intra`` if None.
        speed: Compute speed relative to other nodes with this GPU; at most ``FASTEST``.
    """

    gpu: str
    gpus: int
    names: Sequence[str]
    price: float | None = None
    inter: float | None = None
    intra: float | None = None
    speed: float = 1.0


@dataclass(frozen=True)
class Fleet:
    """Nodes and their measurements.

    Args:
        groups: The nodes, those of a kind together.
        profiles: The file and the profile of each GPU, by the GPU's name.
        measure: The command that measures these nodes.
        unverified: A sentence about what of the profiles was not compared with the nodes; empty if all was.
        left_out: The file of profiles that ``--guess`` leaves out; empty if there is none.
    """

    groups: Sequence[NodeGroup]
    profiles: Mapping[str, tuple[str, Profile]]
    measure: str
    unverified: str = ""
    left_out: str = ""

    def nodes(self, options: TuneOptions) -> list[NodeKind]:
        """Return the kind of each node.

        Raises:
            TrainerError: A GPU is not known, or nodes differ in their number of GPUs.
        """
        found = []
        for group, _gpu, name in self._kinds:
            memory = self._gpu(group.gpu)[1]
            inter, intra = group.inter or options.inter, group.intra or options.intra
            kind = NodeKind(name, group.gpus, inter * 1e9, intra * 1e9, memory, speed=group.speed)
            found += [kind] * len(group.names)
        counts = collections.Counter(node.gpus for node in found)
        if len(counts) > 1:
            which = " and ".join(f"{count} with {gpus} GPUs" for gpus, count in counts.items())
            raise TrainerError(f"All nodes must have as many GPUs as the others; there are {which}.")
        return found

    @functools.cached_property
    def _kinds(self) -> list[tuple[NodeGroup, str, str]]:
        """Each group, its GPU, and its kind's name: the GPU plus the attributes that differ between nodes."""
        gpus = [self._gpu(group.gpu)[0] for group in self.groups]
        values: dict[tuple[str, str], set[float | None]] = collections.defaultdict(set)
        for (group, gpu), key in itertools.product(zip(self.groups, gpus, strict=True), _OWN):
            values[gpu, key].add(getattr(group, key))
        found = []
        for group, gpu in zip(self.groups, gpus, strict=True):
            own = {key: getattr(group, key) for key in _OWN if len(values[gpu, key]) > 1}
            words = [f"{key} {value:g}" for key, value in own.items() if value != _OWN[key]]
            found.append((group, gpu, f"{gpu} ({', '.join(words)})" if words else gpu))
        return found

    def _gpu(self, name: str) -> tuple[str, float]:
        """Return our name of a GPU, and its memory in GiB."""
        accelerator = flops.find_accelerator(name)
        ours = accelerator.name if accelerator else name
        if ours in self.profiles:
            return ours, self.profiles[ours][1].memory_gib
        if accelerator is None:
            known = ", ".join(dict.fromkeys([*self.profiles, *(one.name for one in flops.ACCELERATORS)]))
            raise TrainerError(
                f"The GPU {name[:60]!r} is not known; known are {known}. Or measure it: {self.measure}"
            )
        return ours, accelerator.memory_gib

    def measured(self, nodes: Sequence[NodeKind]) -> Times:
        """Return the times from the profiles.

        Raises:
            TrainerError: A GPU was not measured.
        """
        gpus = {name: gpu for _group, gpu, name in self._kinds}
        for gpu in dict.fromkeys(gpus[node.gpu] for node in nodes):
            if gpu not in self.profiles:
                files = ", ".join(f"{source} of {name}" for name, (source, _one) in self.profiles.items())
                raise TrainerError(
                    f"No profile is of the GPU {gpu} (there is {files}); measure it there: {self.measure}"
                )
        profiles = {node.gpu: self.profiles[gpus[node.gpu]][1] for node in nodes}
        return MeasuredTimes(profiles, {node.gpu: node for node in nodes})

    def peaks(self) -> dict[str, float]:
        """Return the published peaks by the kind's name, TFLOP/s; kinds without one are left out."""
        known = {name: flops.peak_tflops(gpu) for _group, gpu, name in self._kinds}
        return {name: peak for name, peak in known.items() if peak is not None}

    def prices(self, options: TuneOptions) -> dict[str, float]:
        """Return the prices of a GPU-hour by the kind's name; kinds without one are left out.

        Raises:
            TrainerError: No node has the GPU of a price, or an amount is not a price.
        """
        given = options.price_by_gpu()
        gpus = list(dict.fromkeys(gpu for _group, gpu, _name in self._kinds))
        for gpu in given:
            if gpu not in gpus:
                raise TrainerError(
                    f"No node has the GPU {gpu[:60]!r} of --price; they have {', '.join(gpus)}."
                )
        known = {name: given.get(gpu, group.price) for group, gpu, name in self._kinds}
        return {name: price for name, price in known.items() if price}

    def placed(self, kinds: Sequence[str]) -> list[str]:
        """Return the names of the nodes in the order of ranks; empty if they have no names.

        Args:
            kinds: The kind of each node, in the order of ranks.
        """
        waiting: dict[str, collections.deque[str]] = collections.defaultdict(collections.deque)
        for group, _gpu, name in self._kinds:
            waiting[name].extend(group.names)
        order = [waiting[kind].popleft() for kind in kinds]
        return order if all(order) else []


def by_gpu(
    profiles: Iterable[tuple[str, Profile]], config: Config, measure: str
) -> dict[str, tuple[str, Profile]]:
    """Return profiles and their files by the names of the GPUs.

    Args:
        profiles: The file and the profile of each.
        config: The job that they must apply to.
        measure: The command that measures the right ones.

    Raises:
        TrainerError: A profile does not apply to the job, or two are of one GPU.
    """
    found: dict[str, tuple[str, Profile]] = {}
    for source, one in profiles:
        one.require(config, source=source, command=measure)
        if one.gpu in found:
            raise TrainerError(f"{found[one.gpu][0]} and {source} are both of the GPU {one.gpu}; give one.")
        found[one.gpu] = source, one
    return found
