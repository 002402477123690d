# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of ``tune`` that do not depend on a cluster."""

from __future__ import annotations

import errno
import functools
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rdm_core.errors import TrainerError


@dataclass(frozen=True)
class TuneOptions:
    """The options.

    Args:
        config: The job's file.
        overrides: ``key.sub=value`` overrides of it.
        inter: Bandwidth between nodes, Gbit/s of a node.
        intra: Bandwidth between a node's GPUs, Gbit/s.
        efficiency: The share of their peak that GPUs reach, from 0 to 1.
        top: How many layouts to show.
        pareto: Also search subsets of the nodes.
        prices: Prices of a GPU-hour, as ``GPU=AMOUNT``.
        as_json: Print only JSON.
        write: Write the winner into the job's file.
        html: The page to write.
    """

    config: Path
    overrides: tuple[str, ...] = ()
    inter: float = 200.0
    intra: float = 1600.0
    efficiency: float = 0.5
    top: int = 5
    pareto: bool = False
    prices: tuple[str, ...] = ()
    as_json: bool = False
    write: bool = False
    html: Path | None = None

    def __post_init__(self) -> None:
        for name in ("inter", "intra", "efficiency"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise TrainerError(f"--{name} is {value:g}; it must be a number above 0.")
        if self.html is not None:
            if not self.html.parent.is_dir():
                raise TrainerError(
                    f"--html is {self.html}, and the directory {self.html.parent} does not exist."
                )
            try:
                # What exists is written in place: the directory of a pipe takes no file.
                if not self.html.exists():
                    tempfile.TemporaryFile(dir=self.html.parent).close()
                elif not os.access(self.html, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except OSError as error:
                raise TrainerError(
                    f"--html is {self.html}, which cannot be written: {error.strerror}."
                ) from None

    @property
    def of_profile(self) -> list[str]:
        """The overrides that a profile depends on. It does not depend on the layout."""
        kinds = ("engine=", "model.", "optimisation.", "data.", "parallel.activation_memory_budget=")
        return [override for override in self.overrides if override.startswith(kinds)]

    def price_by_gpu(self) -> dict[str, float]:
        """Return the prices of a GPU-hour by the GPU's name.

        Raises:
            TrainerError: An amount is not a price.
        """
        from rdm_core.cost import flops

        prices = {}
        for one in self.prices:
            name, _, amount = one.partition("=")
            try:
                price = float(amount)
            except ValueError:
                price = math.nan
            if not (math.isfinite(price) and price > 0):
                raise TrainerError(
                    f"--price {name} is {amount[:60]!r}; write an amount above 0, as {name}=2.5."
                )
            accelerator = flops.find_accelerator(name)
            prices[accelerator.name if accelerator else name] = price
        return prices


_PARAMETERS = (
    click.argument("config", type=click.Path(path_type=Path), metavar="CONFIG.yaml"),
    click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]..."),
    click.option(
        "--inter",
        type=float,
        metavar="GBIT",
        default=200.0,
        show_default=True,
        help="Between nodes, Gbit/s of a node.",
    ),
    click.option(
        "--intra",
        type=float,
        metavar="GBIT",
        default=1600.0,
        show_default=True,
        help="Between a node's GPUs, Gbit/s.",
    ),
    click.option(
        "--efficiency",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
        default=0.5,
        show_default=True,
        help="The share of their peak that GPUs reach, where nothing was measured.",
    ),
    click.option(
        "--top",
        type=click.IntRange(1, 100),
        metavar="N",
        default=5,
        show_default=True,
        help="How many layouts.",
    ),
    click.option("--pareto", is_flag=True, help="Show time against cost over subsets of the nodes."),
    click.option(
        "--price",
        "prices",
        multiple=True,
        metavar="GPU=AMOUNT",
        help="Price of a GPU-hour, as H100=2.5; without one for each GPU the cost is GPU-hours.",
    ),
    click.option(
        "--html",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write a page with the winner's pipeline, the Pareto front and a sortable table.",
    ),
    click.option(
        "--write", is_flag=True, help="Put the winner's keys, and the overrides, into CONFIG; comments stay."
    ),
)


def tune_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the parameters to a command, which gets them as one :class:`TuneOptions`, its first own argument.

    The value of ``--json``, if the command has it, becomes ``as_json``.
    """

    @functools.wraps(command)
    def wrapper(*arguments: Any, as_json: bool = False, **given: Any) -> Any:
        own = {name: given.pop(name) for name in TuneOptions.__dataclass_fields__ if name in given}
        return command(*arguments, TuneOptions(as_json=as_json, **own), **given)

    for parameter in reversed(_PARAMETERS):
        wrapper = parameter(wrapper)
    return wrapper
