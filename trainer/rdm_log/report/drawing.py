# SPDX-License-Identifier: GPL-3.0-or-later
"""The structure and colours that all plots of a report share.

The colours are by Okabe and Ito, "Color Universal Design": colour-blind people can tell them apart. Compared
jobs also differ in their dashes, for prints without colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Plot = dict[str, Any]
"""``id``, ``title``, ``note``, ``wide``, ``controls``, ``variants``: each a ``label`` and plotly's input."""

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#222222", "#505050"
JOB_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
BARS = 512
"""With more ranks, lines replace bars."""


def plot(
    id_: str,
    title: str,
    data: list[dict[str, Any]] | None = None,
    layout: Mapping[str, Any] | None = None,
    *,
    note: str = "",
    wide: bool = False,
    controls: Sequence[str] = (),
    variants: list[dict[str, Any]] | None = None,
) -> Plot | None:
    """Return a plot of some data or of several variants; None if there are no data."""
    variants = variants or ([{"label": "", "data": data, "layout": layout or {}}] if data else [])
    if not variants:
        return None
    return {
        "id": id_,
        "title": title,
        "note": note,
        "wide": wide,
        "controls": list(controls),
        "variants": variants,
    }


def short(value: float | None) -> float | None:
    """Return a number with six digits: more are not visible, and this halves the size of the page."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(f"{value:.6g}")


def colour_of(number: int) -> str:
    """Return the colour of a job."""
    return JOB_COLOURS[number % len(JOB_COLOURS)]


def dash_of(number: int) -> str:
    """Return the dash pattern of a job's line."""
    return DASHES[number % len(DASHES)]
