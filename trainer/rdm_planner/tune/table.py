# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``tune`` found, for a terminal."""

from __future__ import annotations

import itertools

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rdm_planner.tune.answer import Answer

__all__ = ["show"]


def show(answer: Answer, following: str) -> None:
    """Print an answer.

    Args:
        answer: What was found.
        following: The command to go on with.
    """
    console = Console(highlight=False)
    console.print(
        f"\n{escape(answer.job.name)}: the fastest of {answer.layouts} layouts ({answer.solved} cuts "
        "searched, the others cannot win)."
    )
    _source(console, answer)
    console.print(_layouts(answer))
    console.print(_details(answer))
    best = answer.rows[0]
    if len(set(best["nodes"])) > 1:
        named = zip(best["placement"], best["nodes"], strict=True) if best["placement"] else ()
        placed = [f"{name} ({gpu})" for name, gpu in named] or best["nodes"]
        console.print(f"\nThe winner's nodes, in the order of ranks: {', '.join(placed)}", markup=False)
    if len(answer.rows) > 1:
        second = answer.rows[1]["slower"]
        console.print(f"\nThe second is {second['share']:.1%} slower, mostly by its {second['most']}.")
    shares = ", ".join(f"{name} {seconds / best['seconds']:.0%}" for name, seconds in best["parts"].items())
    console.print(f"The winner's time goes into: {shares}.")
    for doubt in answer.doubts():
        console.print(doubt, markup=False, soft_wrap=True)
    console.print(f"\nNext: {following}\n", soft_wrap=True, markup=False)
    _rest(console, answer)


def _source(console: Console, answer: Answer) -> None:
    if answer.is_measured:
        files = dict.fromkeys(source for source, _profile in answer.fleet.profiles.values())
        console.print(f"As measured: {', '.join(files)}.\n", markup=False, soft_wrap=True)
        return
    console.print(
        "[bold yellow]A GUESS from published peaks and bandwidths: nothing has been measured.[/]\n"
        f"[yellow]Measure on one such node: {escape(answer.fleet.measure)}[/]\n",
        soft_wrap=True,
    )


def _layouts(answer: Answer) -> Table:
    table = Table(box=None, padding=(0, 1))
    for name in ("step s", "tokens/s", "MFU", "tp", "dp", "pp", "micro", "zero", "ckpt", "GiB", "bubble"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("blocks of each stage", overflow="fold")
    for row in answer.rows:
        table.add_row(
            f"{row['seconds']:.3f}",
            f"{row['tokens_per_second']:,.0f}",
            "" if row["mfu"] is None else f"{row['mfu']:.1%}",
            *(str(row[name]) for name in ("tensor", "data", "pipeline", "micro_batch", "zero_stage")),
            "full" if row["checkpointing"] else "",
            f"{row['memory_gib']:.1f}",
            f"{row['parts']['bubble'] / row['seconds']:.0%}",
            row["partition"] if row["pipeline"] > 1 else "",
        )
    return table


def _details(answer: Answer) -> Table:
    """Return where each layout's time goes, what each stage holds, and which kind of node is where."""
    table = Table(box=None, padding=(0, 1))
    for part in answer.rows[0]["parts"]:
        short = part.removeprefix("pipeline ").removesuffix(" reduction")
        table.add_column(short, justify="right", no_wrap=True)
    table.add_column("GiB by stage", overflow="fold")
    is_mixed = any(len(set(row["nodes"])) > 1 for row in answer.rows)
    if is_mixed:
        table.add_column("nodes", overflow="fold")
    for row in answer.rows:
        alike = [(kind, len(list(nodes))) for kind, nodes in itertools.groupby(row["nodes"])]
        table.add_row(
            *(f"{seconds / row['seconds']:.0%}" for seconds in row["parts"].values()),
            "-".join(f"{held:.0f}" for held in row["stage_memory_gib"]),
            *([", ".join(f"{count} x {kind}" for kind, count in alike)] if is_mixed else []),
        )
    return table


def _rest(console: Console, answer: Answer) -> None:
    """Print why others are no layouts, and the subsets of nodes that are worth their cost."""
    if answer.rejected:
        console.print("Left out:")
        for reason, count in answer.rejected.items():
            console.print(f"  {count:>5}  {reason}", markup=False)
        console.print()
    if not answer.front:
        return
    table = Table(box=None, padding=(0, 1))
    unit = "GPU-hours" if answer.front[0][0].price is None else "price"
    for name in ("step s", f"{unit} of 1,000 steps", "tp", "dp", "pp", "micro", "nodes"):
        table.add_column(name, justify="left" if name == "nodes" else "right", no_wrap=True)
    for point, row in answer.front:
        nodes = " + ".join(f"{count} x {gpu}" for gpu, count in point.nodes.items())
        degrees = (str(row[name]) for name in ("tensor", "data", "pipeline", "micro_batch"))
        table.add_row(f"{row['seconds']:.3f}", f"{1000 * point.cost:,.2f}", *degrees, nodes)
    console.print(table)
    console.print()
