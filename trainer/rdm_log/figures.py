# SPDX-License-Identifier: GPL-3.0-or-later
"""Statistics over any number of values, in bounded memory."""

from __future__ import annotations

import functools
import heapq
import math
import operator
from array import array
from collections.abc import Sequence

__all__ = [
    "Curve",
    "Largest",
    "Marks",
    "RankSums",
    "Sample",
    "Series",
    "ascending",
    "quantile",
]


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

    def extend(self, values: array[float]) -> None:
        """Add many values."""
        kept = values[-self.count % self._stride :: self._stride]
        if len(self._kept) + len(kept) < self.most:
            self._kept.extend(kept)
            self.count += len(values)
        else:
            for value in values:
                self.add(value)

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

    def extend(self, values: array[float], owners: array[int], largest: float) -> None:
        """Add many values.

        Args:
            values: The values.
            owners: The owner of each value.
            largest: The largest of the values.
        """
        if len(self._heap) < self._most or largest > self._heap[0][0]:
            for value, owner in zip(values, owners, strict=True):
                self.add(value, owner)

    def ordered(self) -> list[tuple[float, int]]:
        """Return the values with their owners, the largest first."""
        return sorted(self._heap, reverse=True)


class RankSums:
    """The sum and the number of values of each rank, added in order."""

    _DENSE = 1 << 17

    def __init__(self) -> None:
        # Sums by rank; ranks beyond _DENSE are kept in _others.
        self._sums = array("d")
        # The number of values for each range of ranks, by its first rank and the one behind its last.
        self._counts: dict[tuple[int, int], int] = {}
        self._others: dict[int, tuple[float, int]] = {}

    def add(self, rank: int, value: float) -> None:
        """Add a rank's value."""
        if rank >= self._DENSE:
            known, count = self._others.get(rank, (0.0, 0))
            self._others[rank] = known + value, count + 1
            return
        self._note(rank, rank + 1)
        self._sums[rank] += value

    def extend(self, ranks: array[int], values: array[float]) -> None:
        """Add many values.

        Args:
            ranks: The ranks.
            values: The value of each rank, in the same order.
        """
        first, count = ranks[0], len(ranks)
        behind = first + count
        if behind > self._DENSE or ranks != ascending(first, count):
            for rank, value in zip(ranks, values, strict=True):
                self.add(rank, value)
            return
        self._note(first, behind)
        self._sums[first:behind] = array("d", map(operator.add, self._sums[first:behind], values))

    def _note(self, first: int, behind: int) -> None:
        self._counts[first, behind] = self._counts.get((first, behind), 0) + 1
        missing = behind - len(self._sums)
        if missing > 0:
            self._sums.extend(array("d", bytes(8 * missing)))

    def by_rank(self) -> dict[int, tuple[float, int]]:
        """Return (sum, count) by rank."""
        counts = [0] * len(self._sums)
        for (first, behind), count in self._counts.items():
            for rank in range(first, behind):
                counts[rank] += count
        dense = {rank: (self._sums[rank], count) for rank, count in enumerate(counts) if count}
        return {**dense, **self._others}


@functools.lru_cache(maxsize=64)
def ascending(first: int, count: int) -> array[int]:
    """Return ``count`` consecutive numbers from ``first`` on. The array is shared: do not change it."""
    return array("q", range(first, first + count))


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

    def extend(self, xs: array[int], ys: array[float]) -> None:
        """Add many points."""
        every = slice(-self._count % self._stride, None, self._stride)
        kept = list(zip(xs[every], ys[every], strict=True))
        if len(self._points) + len(kept) < 2 * self._most:
            self._points += kept
            self._count += len(xs)
            self._last = (xs[-1], ys[-1])
        else:
            for x, y in zip(xs, ys, strict=True):
                self.add(x, y)

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

    def extend(self, xs: array[int], ones: array[float], others: array[float] | None) -> None:
        """Add many pairs."""
        for begin in range(0, len(xs), self._most):
            part = xs[begin : begin + self._most]
            if part[-1] - part[0] == len(part) - 1:
                indices: Sequence[int] = range(-part[0] % self._stride, len(part), self._stride)
            else:
                indices = [index for index, x in enumerate(part) if x % self._stride == 0]
            for index in indices:
                at = begin + index
                self._found[xs[at]] = ones[at], others[at] if others else None
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

    def extend(self, xs: array[int], ys: array[float]) -> None:
        """Add many values."""
        position = 0
        if self._stride > 1 and math.isfinite(sum(ys)):
            most = 2 * self._most
            while position < len(xs) and (self._counts[-1] < self._stride or len(self._points) < most):
                if self._counts[-1] == self._stride:
                    self._points.append([xs[position], ys[position], ys[position], ys[position]])
                    self._counts.append(1)
                    position += 1
                    continue
                part = ys[position : position + self._stride - self._counts[-1]]
                position += len(part)
                mean = sum(part) / len(part)
                joined = [xs[position - 1], mean, min(part), max(part)]
                self._join(self._points[-1], joined, self._counts[-1], len(part))
                self._counts[-1] += len(part)
        for x, y in zip(xs[position:], ys[position:], strict=True):
            self.add(x, y)

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
