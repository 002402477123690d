"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return rows as a Markdown table.

    Args:
        rows: with the same number of cells; the first is the heading.
        words: the number of columns on the left with words; the others have numbers.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(cells)} |"

    rule = (
        "|"
        + "|".join(
            "-" * (width + 2) if n < words else "-" * (width + 1) + ":" for n, width in enumerate(widths)
        )
        + "|"
    )
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])
