# SPDX-License-Identifier: GPL-3.0-or-later
"""Statistics over any number of values, in bounded memory."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Sequence


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of some values lies, interpolated.

    Args:
        ordered: The values, ascending.
        share: From 0 to 1.
    """
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


class Sample:
    """Values for quantiles: all of them, or beyond ``most`` every second, every fourth, and so on.

    Hundreds of thousands are kept, so quantiles are exact to far less than 1 %.
    """

    def __init__(self, most: int = 1 << 18) -> None:
        self.most = most
        self._kept = array("d")
        self._stride = 1
        self.count = 0

    def add(self, value: float) -> None:
        """Add a value."""
        if self.count % self._stride == 0:
            self._kept.append(value)
            if len(self._kept) >= self.most:
                self._kept = self._kept[::2]
                self._stride *= 2
        self.count += 1

    def ordered(self) -> list[float]:
        """Return the kept values, ascending."""
        return sorted(self._kept)


class Largest:
    """The largest values, each with its owner, such as a step."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[float, int]] = []

    def add(self, value: float, owner: int) -> None:
        """Add a value."""
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, (value, owner))
        elif value > self._heap[0][0]:
            heapq.heapreplace(self._heap, (value, owner))

    def ordered(self) -> list[tuple[float, int]]:
        """Return the values with their owners, the largest first."""
        return sorted(self._heap, reverse=True)


class Curve:
    """Points of a curve, thinned evenly beyond twice ``most``."""

    def __init__(self, most: int = 300) -> None:
        self._most = most
        self._points: list[tuple[int, float]] = []
        self._stride = 1
        self._count = 0
        self._last: tuple[int, float] | None = None

    def add(self, x: int, y: float) -> None:
        """Add a point."""
        self._last = (x, y)
        if self._count % self._stride == 0:
            self._points.append(self._last)
            if len(self._points) >= 2 * self._most:
                self._points = self._points[::2]
                self._stride *= 2
        self._count += 1

    def points(self) -> list[tuple[int, float]]:
        """Return the points, always including the last one."""
        if self._last is None or self._points[-1] == self._last:
            return list(self._points)
        return [*self._points, self._last]


class Marks:
    """Pairs of numbers at multiples of a stride, which doubles when there are too many.

    Two objects made from the same steps have equal pairs at the same steps, wherever each begins.
    """

    def __init__(self, most: int = 2048) -> None:
        self._most = most
        self._stride = 1
        self._found: dict[int, tuple[float, float | None]] = {}

    def add(self, x: int, one: float, other: float | None) -> None:
        """Add a pair."""
        if x % self._stride == 0:
            self._found[x] = one, other
            if len(self._found) > 2 * self._most:
                self._thin()

    def _thin(self) -> None:
        self._stride *= 2
        self._found = {x: pair for x, pair in self._found.items() if x % self._stride == 0}

    def has(self, other: Marks, *, second_only: bool = False) -> bool:
        """Whether all pairs of another object are among these, at the places that both strides keep.

        False when there is no pair to compare.

        Args:
            other: The other object.
            second_only: Compare only the second numbers of the pairs, where there are any.
        """
        stride = max(self._stride, other._stride)
        common = [x for x in other._found if x % stride == 0]
        if second_only:
            common = [x for x in common if other._found[x][1] is not None]
        compared = slice(1, 2) if second_only else slice(2)
        # NaN is not equal to itself, so compare the text.
        return bool(common) and all(
            x in self._found and repr(self._found[x][compared]) == repr(other._found[x][compared])
            for x in common
        )


class Series:
    """A curve for plots: beyond twice ``most`` points, neighbours are merged with their mean and extremes.

    Unlike ``Curve``, it loses no peak. It leaves out values that are not finite.
    """

    def __init__(self, most: int = 600) -> None:
        self._most = most
        self._stride = 1
        self._points: list[list[float]] = []
        self._counts: list[int] = []

    def add(self, x: float, y: float) -> None:
        """Add a value."""
        if not math.isfinite(y):
            return
        if not self._counts or self._counts[-1] == self._stride:
            if len(self._points) == 2 * self._most:
                self._halve()
            self._points.append([x, y, y, y])
            self._counts.append(1)
            return
        self._join(self._points[-1], [x, y, y, y], self._counts[-1], 1)
        self._counts[-1] += 1

    def _halve(self) -> None:
        for first in range(0, len(self._points), 2):
            self._join(self._points[first], self._points[first + 1], self._stride, self._stride)
        del self._points[1::2]
        self._stride *= 2
        self._counts = [self._stride] * len(self._points)

    @staticmethod
    def _join(one: list[float], other: list[float], count: int, more: int) -> None:
        """Merge a point into the one before it.

        Args:
            one: A point, ``[x, mean, least, most]``. It is changed.
            other: The point after it.
            count: The number of values in ``one``.
            more: The number of values in ``other``.
        """
        mean = one[1] + (other[1] - one[1]) * more / (count + more)
        one[:] = [other[0], mean, min(one[2], other[2]), max(one[3], other[3])]

    def points(self) -> list[list[float]]:
        """Return ``[x, mean, least, most]`` of each point; x is that of its last value."""
        return [list(point) for point in self._points]
