# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of ``tune``, for a terminal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rdm_planner.tune.answer import Answer

_LEAST_SHARE = 0.005
_WIDEST = 1000
"""Characters; wider than any table."""


def show(answer: Answer, following: str) -> None:
    """Print an answer."""
    console = Console(highlight=False)
    console.print(
        f"\n{escape(answer.job.name)}: the fastest of {answer.layouts} layouts ({answer.solved} cuts "
        "searched, the others cannot win)."
    )
    _source(console, answer)
    layouts = _layouts(answer)
    # Columns move together before they lose digits.
    unbounded = console.options.update(width=_WIDEST)
    layouts.collapse_padding = console.measure(layouts, options=unbounded).maximum > console.width
    console.print(layouts)
    if note := answer.mfu_note():
        console.print(note)
    if answer.rows[0]["price"] is not None:
        console.print("The price is that of 1,000 steps.")
    for number, row in enumerate(answer.rows, 1):
        console.print(f"\n{number}  {_shares(row)}", markup=False, soft_wrap=True)
        for name, value in _stages(row):
            console.print(f"   {name}: {value}", markup=False, soft_wrap=True)
    console.print()
    if len(answer.rows) > 1:
        second = answer.rows[1]["slower"]
        console.print(f"The second is {second['share']:.1%} slower, mostly by its {second['most']}.")
    for doubt in answer.doubts():
        console.print(doubt, markup=False, soft_wrap=True)
    console.print(f"\nNext: {following}\n", soft_wrap=True, markup=False)
    _rest(console, answer)


def _source(console: Console, answer: Answer) -> None:
    if answer.is_measured:
        files = dict.fromkeys(source for source, _profile in answer.fleet.profiles.values())
        console.print(f"As measured: {', '.join(files)}.\n", markup=False, soft_wrap=True)
        return
    fleet = answer.fleet
    why, next_step = "nothing has been measured", f"Measure on one such node: {fleet.measure}"
    if fleet.left_out:
        why, next_step = "--guess leaves out what was measured", f"Measured: {fleet.left_out}"
    console.print(
        f"[bold yellow]A GUESS from published peaks and bandwidths: {why}.[/]\n"
        f"[yellow]{escape(next_step)}[/]\n",
        soft_wrap=True,
    )


def _layouts(answer: Answer) -> Table:
    table = Table(box=None, padding=(0, 1))
    degrees = _degrees(answer)
    has_eager = any(row["eager_forwards"] for row in answer.rows)
    has_prices = answer.rows[0]["price"] is not None
    names = ["", "step s", "tokens/s", "MFU", *degrees, "micro", "zero", "ckpt"]
    names += [*(["eager"] if has_eager else []), "GiB", *(["price"] if has_prices else [])]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for number, row in enumerate(answer.rows, 1):
        table.add_row(
            str(number),
            f"{row['seconds']:.3f}",
            f"{row['tokens_per_second']:,.0f}",
            "" if row["mfu"] is None else f"{row['mfu']:.1%}",
            *(str(row[name]) for name in (*degrees.values(), "micro_batch", "zero_stage")),
            "full" if row["checkpointing"] else "",
            *([str(row["eager_forwards"])] if has_eager else []),
            f"{row['memory_gib']:.1f}",
            *([f"{1000 * row['price']:,.2f}"] if has_prices else []),
        )
    return table


def _degrees(answer: Answer) -> dict[str, str]:
    """Return the columns of degrees → their keys in a row."""
    shown = {"tp": "tensor", "dp": "data", "pp": "pipeline"}
    shown |= {"v": "virtual_pipeline"} if answer.job.engine == "native" else {}
    shown |= {"ep": "expert"} if answer.job.spec.experts else {}
    rows = [*answer.rows, *(row for _point, row in answer.front or ())]
    return shown | ({"cp": "context"} if any(row["context"] > 1 for row in rows) else {})


def _shares(row: Mapping[str, Any]) -> str:
    """Return where a layout's step time goes, without negligible parts."""
    shares = {name: seconds / row["seconds"] for name, seconds in row["parts"].items()}
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= _LEAST_SHARE)


def _stages(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the blocks and memory of each stage and, if nodes differ, the nodes in the order of ranks."""
    if row["pipeline"] > 1:
        parts = "stage" if row["virtual_pipeline"] == 1 else "chunk"
        yield f"blocks of each {parts}", row["partition"]
        yield "GiB of each stage", "-".join(f"{held:.0f}" for held in row["stage_memory_gib"])
    if len(set(row["nodes"])) > 1:
        alike = [(kind, len(list(nodes))) for kind, nodes in itertools.groupby(row["nodes"])]
        named = zip(row["placement"], row["nodes"], strict=True) if row["placement"] else ()
        placed = [f"{name} ({gpu})" for name, gpu in named]
        yield "nodes", ", ".join(placed or [f"{count} x {kind}" for kind, count in alike])


def _rest(console: Console, answer: Answer) -> None:
    """Print what was left out and why, and the Pareto front of subsets of nodes."""
    if answer.rejected:
        console.print("Left out:")
        for reason, count in answer.rejected.items():
            console.print(f"  {count:>5}  {reason}", markup=False)
        console.print()
    if not answer.front:
        return
    table = Table(box=None, padding=(0, 1))
    unit = "GPU-hours" if answer.front[0][0].price is None else "price"
    degrees = _degrees(answer)
    for name in ("step s", f"{unit} of 1,000 steps", *degrees, "micro", "nodes"):
        table.add_column(name, justify="left" if name == "nodes" else "right", no_wrap=True)
    for point, row in answer.front:
        nodes = " + ".join(f"{count} x {gpu}" for gpu, count in point.nodes.items())
        sizes = (str(row[name]) for name in (*degrees.values(), "micro_batch"))
        table.add_row(f"{row['seconds']:.3f}", f"{1000 * point.cost:,.2f}", *sizes, nodes)
    console.print(table)
    console.print()
