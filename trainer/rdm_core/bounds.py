# SPDX-License-Identifier: GPL-3.0-or-later
"""Which numbers a key of a configuration accepts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Bounds:
    """The numbers that a key accepts: ``least <= value <= most``, or ``above < value < below``."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def hold(self, value: float) -> bool:
        """Return whether a value is within the bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"least": "at least", "most": "at most", "above": "above", "below": "below"}
        given = [
            (words[name], value) for name, value in dataclasses.asdict(self).items() if value is not None
        ]
        return " and ".join(f"{word} {value:.15g}" for word, value in given)


MOST = 2**31 - 1
"""The largest size or count: the data formats have 32-bit integers."""

Positive = Annotated[int, Bounds(least=1, most=MOST)]
Natural = Annotated[int, Bounds(least=0, most=MOST)]
# The pipeline has a list entry for each layer. A larger number is a typing error.
Layers = Annotated[int, Bounds(least=1, most=4096)]
Samples = Annotated[int, Bounds(least=1, most=10**15)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, below=1)]
Port = Annotated[int, Bounds(least=1024, most=65535)]
