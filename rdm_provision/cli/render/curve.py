# SPDX-License-Identifier: GPL-3.0-or-later
"""A curve in the terminal, drawn with braille dots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

Point = tuple[float, float]

_BRAILLE = 0x2800
# The bit of the dot in column x (0, 1) and row y (0 at the top … 3) of a braille character.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_TICKS = 4


def curve(points: Sequence[Point], width: int, height: int, *, braille: bool = True) -> list[str]:
    """Return the lines of a plot of points, with axes.

    Args:
        points: (x, y), sorted by x; points that are not finite are left out.
        width: columns of the whole plot.
        height: rows of the curve itself; one more row holds the ends of the x axis.
        braille: draw with braille dots, two by four to a character; otherwise with asterisks.

    Returns:
        ``height + 2`` lines; none for fewer than two points.
    """
    shown = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(shown) < 2:
        return []
    low, high = min(y for _, y in shown), max(y for _, y in shown)
    if low == high:
        low, high = low - 0.5, high + 0.5
    labels = _labels(low, high, height)
    margin = max(len(label) for label in labels.values())
    columns = max(8, width - margin - 2)
    picture = _Picture(columns, height, braille=braille)
    picture.draw(shown, low, high)
    vertical, corner, horizontal = ("┤", "└", "─") if braille else ("|", "+", "-")
    lines = [
        f"{labels.get(row, ''):>{margin}} {vertical}{text}".rstrip()
        for row, text in enumerate(picture.lines())
    ]
    lines.append(f"{'':>{margin}} {corner}{horizontal * columns}")
    first, last = f"{shown[0][0]:g}", f"{shown[-1][0]:g}"
    lines.append(f"{'':>{margin}}  {first}{last:>{columns - len(first)}}")
    return lines


def _labels(low: float, high: float, height: int) -> dict[int, str]:
    """Return the labels of the y axis by row, with enough digits to tell them apart."""
    rows = sorted({round(tick * (height - 1) / _TICKS) for tick in range(_TICKS + 1)})
    digits = max(0, 2 - math.floor(math.log10(high - low)))
    return {row: f"{high - (high - low) * row / max(1, height - 1):.{digits}f}" for row in rows}


class _Picture:
    """Dots on a grid of characters."""

    def __init__(self, columns: int, rows: int, *, braille: bool) -> None:
        self._braille = braille
        self._across, self._down = (2, 4) if braille else (1, 1)
        self._cells = [[0] * columns for _ in range(rows)]

    def draw(self, points: Sequence[Point], low: float, high: float) -> None:
        """Draw a line through points, between the values at the bottom and at the top."""
        width = len(self._cells[0]) * self._across - 1
        height = len(self._cells) * self._down - 1
        begin, end = points[0][0], points[-1][0]
        span = (end - begin) or 1.0
        dots = [
            (round((x - begin) / span * width), round((high - y) / (high - low) * height)) for x, y in points
        ]
        for (x0, y0), (x1, y1) in itertools.pairwise(dots):
            steps = max(abs(x1 - x0), abs(y1 - y0), 1)
            for step in range(steps + 1):
                self._dot(round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps))

    def _dot(self, x: int, y: int) -> None:
        bit = _DOTS[x % 2][y % 4] if self._braille else 1
        self._cells[y // self._down][x // self._across] |= bit

    def lines(self) -> list[str]:
        """Return one string for each row of characters."""
        if self._braille:
            return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in self._cells]
        return ["".join("*" if cell else " " for cell in row) for row in self._cells]
