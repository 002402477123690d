# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of training's figures: its summary says what its tables say."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).resolve().parents[3] / "docs"


def rows(heading: str) -> list[dict[str, str]]:
    """Return the rows of the first table below a heading, by the names of their columns."""
    section = (PAGES / "training-performance.md").read_text(encoding="utf-8").partition(f"# {heading}\n")[2]
    table = section[section.index("\n|") + 1 :].partition("\n\n")[0]
    names, _, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [dict(zip(names, row, strict=True)) for row in cells]


def test_the_summary_has_the_shares_of_a_plain_loop_that_the_tables_have() -> None:
    native = [float(row["of plain"]) for row in rows("One GPU")]
    deepspeed = [
        float(row["of plain on one"])
        for row in rows("Both engines")
        if (row["engine"], row["layout"]) == ("deepspeed", "one")
    ]
    (row,) = [row for row in rows("Training performance") if "plain PyTorch loop?" in row["question"]]
    assert re.findall(r"(\d\.\d+) to (\d\.\d+)", row["result"]) == [
        (f"{min(shares):.3f}", f"{max(shares):.3f}") for shares in (native, deepspeed)
    ]
    overview = (PAGES / "performance.md").read_text(encoding="utf-8")
    assert f"{min(native):.3f} to {max(native):.3f} of its tokens/s with `engine: native`" in overview
