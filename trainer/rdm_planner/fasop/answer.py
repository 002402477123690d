# SPDX-License-Identifier: GPL-3.0-or-later
"""FASOP's result for one of its models, and that of an exact search with its cost model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from rdm_core.errors import FAILED, TrainerError
from rdm_planner.fasop.model import FasopModel, rotations
from rdm_planner.fasop.shapes import A10, A100, SHAPES
from rdm_planner.layouts import Estimate
from rdm_planner.nodes import NodeKind
from rdm_planner.search import search

_KINDS = {"A10": A10, "A100": A100, "A100-40": A100}


@dataclass(frozen=True)
class FasopAnswer:
    """The fastest layouts within memory, the fastest first.

    Args:
        name: The model.
        layouts: Number of layouts, counted on each placement that FASOP tries.
        unfit: Number of those that do not fit the memory according to FASOP.
        heuristic: Layouts with FASOP's own cuts, including the bugs of its program.
        exact: Layouts with the best cuts.
        bound: Lower bound on the step time of any layout on those placements, seconds.
    """

    name: str
    layouts: int
    unfit: int
    heuristic: Sequence[Estimate]
    exact: Sequence[Estimate]
    bound: float

    def to_json(self) -> dict[str, Any]:
        """Return the output of ``--json``; times are in seconds."""
        return {
            "ok": True,
            "layouts": self.layouts,
            "unfit": self.unfit,
            "bound": self.bound,
            "heuristic": [_row(one) for one in self.heuristic],
            "exact": [_row(one) for one in self.exact],
        }


def answer(name: str, groups: Iterable[tuple[int, str, int]], top: int) -> FasopAnswer:
    """Search as FASOP does, and exactly.

    Args:
        name: ``gpt2XL``, ``bert`` or ``T5``, with the batch of FASOP's cases.
        groups: For each group, the number of nodes, their GPU, and the number of GPUs per node.
        top: How many layouts to return.

    Raises:
        TrainerError: FASOP has no such model or nodes, or no layout fits.
    """
    shape = SHAPES.get(name)
    if shape is None:
        raise TrainerError(f"{name[:60]!r} is no model of FASOP's; write one of {', '.join(sorted(SHAPES))}.")
    nodes: list[NodeKind] = []
    for count, gpu, gpus in groups:
        kind = _KINDS.get(gpu)
        if kind is None or gpus != kind.gpus:
            raise TrainerError(
                f"FASOP has no nodes of {gpus} {gpu[:60]}; it has A10 and A100, 4 in a node: 1xA100:4."
            )
        nodes += [kind] * count
    orders = rotations(nodes)
    found = [
        model.estimate(layout)
        for order in orders
        for model in [FasopModel(shape, order)]
        for layout in model.layouts()
    ]
    fitting = sorted((one for one in found if one.fits), key=lambda one: one.seconds)
    exact = search(
        [FasopModel(shape, order, with_slips=False, within_memory=True) for order in orders], keep=top
    )
    if not fitting or not exact.best:
        raise TrainerError(
            f"{name} does not fit {4 * len(nodes)} such GPUs in any layout; take more nodes.",
            exit_code=FAILED,
        )
    return FasopAnswer(name, len(found), len(found) - len(fitting), fitting[:top], exact.best, exact.bound)


def show(found: FasopAnswer) -> None:
    """Print an answer for people."""
    console = Console(highlight=False)
    console.print(
        f"\n{found.name} as FASOP measured and models it: {found.layouts} layouts, {found.unfit} of them too "
        "large for the memory.",
        soft_wrap=True,
    )
    for title, estimates in (("FASOP's own cuts", found.heuristic), ("Exact cuts", found.exact)):
        table = Table(box=None, padding=(0, 1), title=title, title_justify="left")
        for name in ("step s", "pipeline", "data", "embedding", "tp", "dp", "pp", "micro", "GiB"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("layers of stages", overflow="fold")
        for one in estimates:
            layout, parts = one.layout, one.parts
            nodes = ", ".join(f"{len(list(alike))}x{gpu}" for gpu, alike in itertools.groupby(one.nodes))
            table.add_row(
                f"{one.seconds:.6f}",
                *(f"{parts[name]:.3f}" for name in ("pipeline", "data reduction", "embedding reduction")),
                *map(str, (layout.tensor, layout.data, layout.pipeline, layout.micro_batch)),
                f"{one.memory_gib:.1f}",
                f"{'-'.join(map(str, one.cut))} on {nodes}",
            )
        console.print()
        console.print(table)
    if found.bound < found.exact[0].seconds * (1 - 1e-6):
        console.print(f"\nNot proved: one of {found.bound:.6f} s can exist.")
    console.print()


def _row(estimate: Estimate) -> Mapping[str, Any]:
    layout = estimate.layout
    return {
        "tensor": layout.tensor,
        "data": layout.data,
        "pipeline": layout.pipeline,
        "micro_batch": layout.micro_batch,
        "layers": list(estimate.cut),
        "nodes": list(estimate.nodes),
        "seconds": estimate.seconds,
        "parts": dict(estimate.parts),
        "memory_gib": estimate.memory_gib,
    }
