# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of the timers of all ranks, thousands at once: numpy finds them in a block and reads their numbers.

A program writes them to one form, ``     rank  3: 123.45``: seen from the end of each line the digits stand
in columns. What has another form is read by the expression that says what such a line is, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rdm_log.decimals import ENDING, ending_at

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["RankLines", "TimerLines", "are_rank_lines"]

_LINE = re.compile(rb"  rank +\d{1,9}: +\d+\.?\d*[ \t]*+\n")
_INDENTED = re.compile(rb" +rank ")
_RANK = 9
"""The number of a rank has as many."""
_FORMS = 4
"""So many numbers of decimals are looked for among lines."""


def are_rank_lines(data: bytes) -> bool:
    """Return whether half of some lines or more are ranks' times. Among fewer numpy wins nothing."""
    return 2 * len(_LINE.findall(data)) > data.count(b"\n")


class TimerLines(NamedTuple):
    """Lines below headings of timers, in their order: names of timers, and ranks with their times.

    Attributes:
        numbers: Which lines they are, counted from 0.
        begins: Where each begins.
        ends: Where its newline is.
        ranks: The rank; -1 in lines with a name.
        milliseconds: The rank's time.
        places: Which of the lines have a name.
        names: Those names.
    """

    numbers: Integers
    begins: Integers
    ends: Integers
    ranks: Integers
    milliseconds: Floats
    places: Integers
    names: Sequence[bytes]

    def since(self, first: int) -> TimerLines:
        """Return them from one on."""
        named = int(self.places.searchsorted(first))
        return TimerLines(
            self.numbers[first:],
            self.begins[first:],
            self.ends[first:],
            self.ranks[first:],
            self.milliseconds[first:],
            self.places[named:] - first,
            self.names[named:],
        )


class RankLines:
    """What could be lines of timers in some bytes, whichever heading is above them. It needs numpy.

    Args:
        data: Lines.
    """

    def __init__(self, data: bytes) -> None:
        import numpy

        self._np = numpy
        # Each line has a newline before it.
        self._data = b"\n" + data
        self._bytes: Bytes = numpy.frombuffer(self._data, numpy.uint8)
        self._newlines: Integers = numpy.flatnonzero(self._bytes == ord("\n"))

    @property
    def begins(self) -> Integers:
        """Where lines begin, and where the last one that has a newline ends."""
        return self._newlines

    def lines(self, tag: bytes, pattern: re.Pattern[bytes]) -> TimerLines | None:
        """Return the lines that a pattern matches; None where few have one form.

        Args:
            tag: What stands before each of them.
            pattern: A newline, the tag, two spaces or more, and a rank and its time, or a name: three groups.
        """
        np = self._np
        before, ends = self._newlines[:-1], self._newlines[1:]
        indented = np.flatnonzero(self._begin_with(before, tag + b"  "))
        before, ends = before[indented], ends[indented]
        prefix = self._prefix(before, tag)
        skipped = 1 + len(prefix)
        with_rank = self._begin_with(before, prefix) if prefix else np.zeros(len(before), np.bool_)
        ranks = np.full(len(before), -1)
        milliseconds = np.zeros(len(before))
        self._read(np.flatnonzero(with_rank), before + skipped, ends, ranks, milliseconds)
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
            indented[kept],
            before[kept],
            ends[kept] - 1,
            ranks[kept],
            milliseconds[kept],
            places,
            [*names.values()],
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
        self, lines: Integers, begins: Integers, ends: Integers, ranks: Integers, times: Floats
    ) -> None:
        """Read the numbers of lines; those that are not plain are left as they are.

        Args:
            lines: Which lines.
            begins: Where the numbers of each line begin.
            ends: Where they end.
            ranks: To be filled.
            times: To be filled.
        """
        for _ in range(_FORMS):
            if not len(lines):
                return
            first, end = int(begins[lines[0]]), int(ends[lines[0]])
            form = ENDING.search(self._data, first, end)
            if form is None:
                lines = lines[1:]
                continue
            behind = len(form[1])
            found, at = ending_at(self._bytes, ends[lines], behind)
            fits = (self._before(at, 1) == ord(" ")) & (self._before(at, 2) == ord(":"))
            rank, rank_at = ending_at(self._bytes, at - 2, 0)
            digits, spaces = at - 2 - rank_at, rank_at - begins[lines]
            fits &= (at < ends[lines]) & (digits > 0) & (digits <= _RANK) & (spaces >= 0)
            for space in range(1, 1 + int(spaces[fits].max(initial=0))):
                fits &= (spaces < space) | (self._before(rank_at, space) == ord(" "))
            ranks[lines[fits]] = rank[fits]
            times[lines[fits]] = found[fits] / float(10**behind)
            lines = lines[~fits]

    def _before(self, places: Integers, distance: int) -> Bytes:
        """Return the bytes that stand some bytes before some places."""
        return self._bytes.take(places - distance, mode="clip")
