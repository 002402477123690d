# SPDX-License-Identifier: GPL-3.0-or-later
"""Adjacent colours can be distinguished, also by people who lack one kind of cones."""

from __future__ import annotations

import itertools
import math

import pytest

from rdm_log.report.drawing import JOB_COLOURS
from rdm_log.report.gantt import _BUBBLE as BUBBLE
from rdm_log.report.gantt import _KIND_COLOURS as KIND_COLOURS

Triple = tuple[float, float, float]

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# IEEE Transactions on Visualization and Computer Graphics 15 (6), 2009, for severity 1.0, on linear RGB.
EYES: dict[str, tuple[Triple, Triple, Triple]] = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# IEC 61966-2-1 (sRGB, white D65) to CIE XYZ.
XYZ: tuple[Triple, Triple, Triple] = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
WHITE: Triple = (0.95047, 1.0, 1.08883)
LEAST = 10.0
"""The least CIE 1976 difference. One of 2.3 is just noticeable with both colours side by side."""


def times(matrix: tuple[Triple, Triple, Triple], vector: Triple) -> Triple:
    first, second, third = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return first, second, third


def linear(colour: str) -> Triple:
    first, second, third = (int(colour[begin : begin + 2], 16) / 255 for begin in (1, 3, 5))

    def one(value: float) -> float:
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    return one(first), one(second), one(third)


def lab(colour: str, eyes: str) -> Triple:
    """Return a colour as somebody sees it, in CIE L*a*b*."""
    red, green, blue = (max(0.0, part) for part in times(EYES[eyes], linear(colour)))
    x, y, z = (part / white for part, white in zip(times(XYZ, (red, green, blue)), WHITE, strict=True))

    def f(value: float) -> float:
        return math.cbrt(value) if value > (6 / 29) ** 3 else value / (3 * (6 / 29) ** 2) + 4 / 29

    return 116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))


def test_colour_distance_detects_confusable_colours() -> None:
    red, green = "#C03030", "#5A7A20"
    usual, others = (math.dist(lab(red, eyes), lab(green, eyes)) for eyes in ("usual", "deuteranopia"))
    assert usual > 4 * others
    assert lab("#FFFFFF", "usual") == pytest.approx((100, 0, 0), abs=0.1)
    assert lab("#808080", "protanopia") == pytest.approx(lab("#808080", "usual"), abs=0.1)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("colours", [JOB_COLOURS, (*KIND_COLOURS.values(), BUBBLE)], ids=["jobs", "kinds"])
def test_adjacent_colours_can_be_distinguished(colours: tuple[str, ...], eyes: str) -> None:
    near = {
        (one, other): round(math.dist(lab(one, eyes), lab(other, eyes)), 1)
        for one, other in itertools.combinations(colours, 2)
    }
    assert {pair: far for pair, far in near.items() if far < LEAST} == {}
