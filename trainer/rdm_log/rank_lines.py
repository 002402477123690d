# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of the timers of all ranks, thousands at once: numpy finds them in a block and reads their numbers.

A program writes them to one form, ``     rank  3: 123.45``: of those that have one length the digits stand in
columns. What has another form is read by the expression that says what such a line is, one by one.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["RankLines", "TimerLines", "are_rank_lines"]

_LINE = re.compile(rb"  rank +\d{1,9}: +\d+\.?\d*[ \t]*+\n")
_NUMBERS = re.compile(rb" *\d{1,9}: (\d+\.\d*)")
_INDENTED = re.compile(rb" +rank ")
_LONGEST = 32
"""So many bytes the numbers of a line have at most; a longer one is read alone."""
_DIGITS = 15
"""A number of as many digits is exact in 64 bits, and so is a power of ten up to 22."""
_RANK = 9
"""The number of a rank has as many."""
_FORMS = 4
"""Among lines of one length so many forms are looked for."""
_TAGS = 4
"""So many launchers' tags are looked for in one block."""


def are_rank_lines(data: bytes) -> bool:
    """Return whether half of some lines or more are ranks' times. Among fewer numpy wins nothing."""
    return 2 * len(_LINE.findall(data)) > data.count(b"\n")


class TimerLines(NamedTuple):
    """Lines below headings of timers, in their order: names of timers, and ranks with their times.

    Attributes:
        begins: Where the newline before each of them is.
        ends: Where its own is.
        ranks: The rank; -1 in lines with a name.
        milliseconds: The rank's time.
        places: Which of the lines have a name.
        names: Those names.
    """

    begins: Integers
    ends: Integers
    ranks: Integers
    milliseconds: Floats
    places: Integers
    names: Sequence[bytes]

    def between(self, position: int, end: int) -> TimerLines:
        """Return those whose newlines, that before and their own, are between two positions."""
        first, last = int(self.begins.searchsorted(position)), int(self.ends.searchsorted(end))
        of, to = self.places.searchsorted([first, last]).tolist()
        return TimerLines(
            self.begins[first:last],
            self.ends[first:last],
            self.ranks[first:last],
            self.milliseconds[first:last],
            self.places[of:to] - first,
            self.names[of:to],
        )

    def widest(self, last: int) -> int:
        """Return the most bytes between two neighbours.

        Args:
            last: Where the line before them ends.
        """
        gaps = self.begins[1:] - self.ends[:-1]
        return max(int(self.begins[0]) - last, int(gaps.max()) if len(gaps) else 0)

    def times(self, first: int, last: int) -> tuple[bytes, array[float]]:
        """Return the ranks, as bytes of an array, and the times of some lines, which have no names."""
        return (
            self.ranks[first:last].tobytes(),
            array("d", self.milliseconds[first:last].tobytes()),
        )


class RankLines:
    """What could be lines of timers in some bytes, whichever heading is above them. It needs numpy.

    Args:
        data: Lines.
    """

    def __init__(self, data: bytes) -> None:
        import numpy

        self._np = numpy
        self._data = data
        self._bytes: Bytes = numpy.frombuffer(data, numpy.uint8)
        self._newlines: Integers = numpy.flatnonzero(self._bytes == ord("\n"))
        self._found: dict[bytes, TimerLines | None] = {}

    def of(self, tag: bytes, pattern: re.Pattern[bytes]) -> TimerLines | None:
        """Return the lines that a pattern matches; None where few have one form, or there are many tags.

        Args:
            tag: What stands before each of them.
            pattern: A newline, the tag, two spaces or more, and a rank and its time, or a name: three groups.
        """
        if tag not in self._found:
            if len(self._found) >= _TAGS:
                return None
            self._found[tag] = self._lines(tag, pattern)
        return self._found[tag]

    def _lines(self, tag: bytes, pattern: re.Pattern[bytes]) -> TimerLines | None:
        np = self._np
        before, ends = self._newlines[:-1], self._newlines[1:]
        indented = self._begin_with(before, tag + b"  ")
        before, ends = before[indented], ends[indented]
        prefix = self._prefix(before, tag)
        skipped = 1 + len(prefix)
        with_rank = self._begin_with(before, prefix) if prefix else np.zeros(len(before), np.bool_)
        lengths = np.where(with_rank, ends - before - skipped, 0)
        ranks = np.full(len(before), -1)
        milliseconds = np.zeros(len(before))
        for length in np.unique(lengths).tolist():
            if 0 < length <= _LONGEST:
                self._read(np.flatnonzero(lengths == length), before + skipped, length, ranks, milliseconds)
        alone = np.flatnonzero(ranks < 0)
        if 2 * len(alone) > len(before):
            return None
        is_one = np.ones(len(before), np.bool_)
        names: dict[int, bytes] = {}
        for line in alone.tolist():
            match = pattern.match(self._data, int(before[line]), int(ends[line]) + 1)
            if match is None:
                is_one[line] = False
            elif match[3] is not None:
                names[line] = match[3]
            else:
                ranks[line], milliseconds[line] = int(match[1]), float(match[2])
        kept = np.flatnonzero(is_one)
        places = kept.searchsorted(np.asarray([*names], np.int64))
        return TimerLines(
            before[kept], ends[kept], ranks[kept], milliseconds[kept], places, [*names.values()]
        )

    def _begin_with(self, before: Integers, text: bytes) -> Flags:
        """Return which of the lines behind some newlines begin with a text."""
        np = self._np
        found: Flags = np.zeros(len(before), np.bool_)
        # What has no room for the text does not begin with it.
        room = int(before.searchsorted(len(self._data) - len(text)))
        candidates = np.arange(room)
        for place, byte in enumerate(text, 1):
            candidates = candidates[self._bytes[before[candidates] + place] == byte]
        found[candidates] = True
        return found

    def _prefix(self, before: Integers, tag: bytes) -> bytes:
        """Return what stands before the number of the first rank; empty where there is none."""
        for newline in before.tolist():
            if match := _INDENTED.match(self._data, newline + 1 + len(tag)):
                return tag + match[0]
        return b""

    def _read(
        self, lines: Integers, begins: Integers, length: int, ranks: Integers, milliseconds: Floats
    ) -> None:
        """Read the numbers of lines whose numbers have one length; what has another form is left as it is."""
        np = self._np
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, length)
        for _ in range(_FORMS):
            if not len(lines):
                return
            first = int(begins[lines[0]])
            match = _NUMBERS.fullmatch(self._data, first, first + length)
            value = match.start(1) - first if match else 0
            colon = value - 2
            if match is None or colon > _RANK or length - value > _DIGITS:
                lines = lines[1:]
                continue
            point = self._data.index(b".", match.start(1)) - first
            rows = windows[begins[lines]]
            digits = rows ^ ord("0")
            wide = digits[:, :colon]
            spaces = rows[:, :colon] == ord(" ")
            wide[spaces] = 0
            texts = rows[:, [colon, colon + 1, point]]
            fits = (texts == np.frombuffer(b": .", np.uint8)).all(axis=1)
            digits[:, [colon, colon + 1, point]] = 0
            fits &= (digits <= 9).all(axis=1) & ~spaces[:, -1]
            fits &= (spaces[:, 1:] <= spaces[:, :-1]).all(axis=1)
            digits = digits[fits]
            decimals = length - point - 1
            mantissa = np.zeros(len(digits), np.int64)
            for column in (*range(value, point), *range(point + 1, length)):
                mantissa = 10 * mantissa + digits[:, column]
            rank = np.zeros(len(digits), np.int64)
            for column in range(colon):
                rank = 10 * rank + digits[:, column]
            ranks[lines[fits]] = rank
            milliseconds[lines[fits]] = mantissa / float(10**decimals)
            lines = lines[~fits]
