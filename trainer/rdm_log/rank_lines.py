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
_GLANCE = 64
"""So many lines are looked at in turn for the first one of a rank."""
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
        if len(indented) < len(before):
            before, ends = before[indented], ends[indented]
        prefix = self._prefix(before, tag)
        with_rank = self._begin_with(before, prefix, len(tag) + 2) if prefix else np.zeros(len(before), bool)
        ranks = np.full(len(before), -1)
        milliseconds = np.zeros(len(before))
        self._read(np.flatnonzero(with_rank), before + (1 + len(prefix)), ends, ranks, milliseconds)
        alone = np.flatnonzero(ranks < 0)
        if 2 * len(alone) > len(before):
            return None
        others: list[int] = []
        names: dict[int, bytes] = {}
        # The newline behind a line is a part of what is looked for.
        both = zip(before[alone].tolist(), (ends[alone] + 1).tolist(), strict=True)
        texts = [self._data[begin:end] for begin, end in both]
        known = {text: match.groups() for text in set(texts) if (match := pattern.match(text))}
        for line, told in zip(alone.tolist(), map(known.get, texts), strict=True):
            if told is None:
                others.append(line)
            elif told[2] is not None:
                names[line] = told[2]
            else:
                ranks[line], milliseconds[line] = int(told[0]), float(told[1])
        places = np.asarray([*names], np.int64)
        if others:
            kept = np.delete(np.arange(len(before)), others)
            indented, before, ends = indented[kept], before[kept], ends[kept]
            ranks, milliseconds, places = ranks[kept], milliseconds[kept], kept.searchsorted(places)
        return TimerLines(indented, before, ends - 1, ranks, milliseconds, places, [*names.values()])

    def _begin_with(self, before: Integers, text: bytes, known: int = 0) -> Flags:
        """Return which of the lines behind some newlines begin with a text.

        Args:
            before: The newlines.
            text: The text.
            known: With so many of its bytes all of the lines begin.
        """
        np = self._np
        found: Flags = np.ones(len(before), np.bool_)
        # What has no room for the text does not begin with it.
        room = int(before.searchsorted(len(self._data) - len(text)))
        found[room:] = False
        at = before[:room] + known
        for byte in text[known:]:
            at += 1
            found[:room] &= self._bytes.take(at) == byte
        return found

    def _prefix(self, before: Integers, tag: bytes) -> bytes:
        """Return what stands before the number of the first rank; empty where there is none."""
        for first in range(0, len(before), _GLANCE):
            for newline in before[first : first + _GLANCE].tolist():
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
            begin, end = begins[lines], ends[lines]
            form = ENDING.search(self._data, int(begin[0]), int(end[0]))
            if form is None:
                lines = lines[1:]
                continue
            behind = len(form[1])
            found, at = ending_at(self._bytes, end, behind)
            fits = (self._before(at, 1) == ord(" ")) & (self._before(at, 2) == ord(":"))
            rank, rank_at = ending_at(self._bytes, at - 2, 0)
            digits, spaces = at - 2 - rank_at, rank_at - begin
            fits &= (at < end) & (digits > 0) & (digits <= _RANK) & (spaces >= 0)
            for space in range(1, 1 + int((spaces * fits).max())):
                fits &= (spaces < space) | (self._before(rank_at, space) == ord(" "))
            others = lines[~fits]
            if len(others):
                lines, rank, found = lines[fits], rank[fits], found[fits]
            ranks[lines] = rank
            times[lines] = found / float(10**behind)
            lines = others

    def _before(self, places: Integers, distance: int) -> Bytes:
        """Return the bytes that stand some bytes before some places."""
        return self._bytes.take(self._np.maximum(places - distance, 0))
