# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of timers, thousands at once, taken out of a block; what stands between is read as if they were not.

Megatron writes them with every step, so that training lines are neighbours without them. Its tables of the
shortest and the longest time have lines of one form, ``    NAME ....: (12.30, 45.60)``: seen from the end of
each the digits stand in columns, and numpy reads them. What has another form stays.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rdm_log.bulk import PROBE, ShortestLongest
from rdm_log.decimals import ending_at
from rdm_log.lines import Timer, parse

if TYPE_CHECKING:
    import numpy as np

    Integers = np.ndarray[Any, np.dtype[np.int64]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["Apart", "are_tables", "tables_apart"]

_HEADING = b"(min, max) time across ranks (ms):"
_MARK = b"...: ("
_LINE = re.compile(rb"\.\.: \(\d+\.(\d+), \d+\.\d+\)\n")
_FEW = 64
"""So few times are told one by one."""


def are_tables(data: bytes) -> bool:
    """Return whether half of some lines or more are of tables. Among fewer numpy wins nothing."""
    return 2 * data.count(_MARK) > data.count(b"\n")


class Apart:
    """The lines of tables in a block, by the places where they stood.

    Attributes:
        rest: The other lines.
    """

    def __init__(
        self, rest: bytes, places: Integers, names: Sequence[str], who: Integers, times: tuple[Floats, Floats]
    ) -> None:
        """Take note of the lines.

        Args:
            rest: The others.
            places: How many bytes of the others stand before each.
            names: Names of timers.
            who: Which of them each line tells of.
            times: The shortest and the longest times.
        """
        self.rest = rest
        self._places, self._names, self._who, self._times = places, names, who, times
        self._told = 0

    def until(self, place: int) -> Iterator[Timer | ShortestLongest]:
        """Yield the times that stood before a place in the others and were not yet told, by name if many."""
        first, last = self._told, int(self._places.searchsorted(place, "right"))
        self._told = last
        own = slice(first, last)
        least, most = (times[own] for times in self._times)
        if last - first <= _FEW:
            for who, shortest, longest in zip(
                self._who[own].tolist(), least.tolist(), most.tolist(), strict=True
            ):
                yield Timer(self._names[who], longest, least=shortest)
            return
        order = self._who[own].argsort(kind="stable")
        least, most, begin = least[order], most[order], 0
        ends = self._who[own][order].searchsorted(range(1, 1 + len(self._names))).tolist()
        for name, end in zip(self._names, ends, strict=True):
            if end > begin:
                yield ShortestLongest(
                    name, array("d", most[begin:end].tobytes()), array("d", least[begin:end].tobytes())
                )
            begin = end


def tables_apart(data: bytes) -> Apart | None:
    """Take the lines of tables out of a block; None where they are not dense, or not plain.

    Args:
        data: Lines.
    """
    form = _LINE.search(data) if are_tables(data[:PROBE]) or are_tables(data[-PROBE:]) else None
    if form is None:
        return None
    import numpy as np

    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    begins = np.concatenate(([0], ends + 1))[:-1]
    lines = np.flatnonzero(text[ends - 1] == ord(")"))
    most, middle = ending_at(text, ends[lines] - 1, len(form[1]))
    least, left = ending_at(text, middle - 2, len(form[1]))
    fits = (middle < ends[lines] - 1) & (left < middle - 2) & (left > begins[lines])
    for place, byte in ((middle - 1, b" "), (middle - 2, b","), (left - 1, b"(")):
        fits &= text.take(place, mode="clip") == byte[0]
    lines, most, least, left = lines[fits], most[fits], least[fits], left[fits]
    known = _Names()
    who = np.fromiter(
        (known[data[begin:end]] for begin, end in zip(begins[lines].tolist(), left.tolist(), strict=True)),
        np.int64,
        len(lines),
    )
    is_one = who >= 0
    lines = lines[is_one]
    if not len(lines):
        return None
    gone = np.zeros(len(ends), np.bool_)
    gone[lines] = True
    for heading in (np.flatnonzero(gone & ~np.concatenate(([False], gone[:-1]))) - 1).tolist():
        gone[heading] |= heading >= 0 and known.is_heading(data[begins[heading] : ends[heading]])
    stays = np.where(gone, 0, ends + 1 - begins).cumsum()
    scale = float(10 ** len(form[1]))
    return Apart(
        _without(data, begins, gone),
        stays[lines],
        known.names,
        who[is_one],
        (least[is_one] / scale, most[is_one] / scale),
    )


def _without(data: bytes, begins: Integers, gone: Any) -> bytes:
    """Return some bytes without those of their lines that are gone."""
    import numpy as np

    # Where it changes whether lines stay: at the first, at every second after it they go.
    changes = np.flatnonzero(np.diff(gone, prepend=True))
    borders = [*begins[changes].tolist(), len(data)]
    if gone[-1]:
        # What stands behind the last newline stays.
        borders.insert(-1, data.rindex(b"\n") + 1)
    return b"".join(data[begin:end] for begin, end in zip(borders[::2], borders[1::2], strict=True))


class _Names(dict[bytes, int]):
    """The number of the timer's name by what stands before its times; -1 for what is no line of a table."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._headings: dict[bytes, bool] = {}

    def __missing__(self, key: bytes) -> int:
        match parse(key + b"1.0, 2.0)"):
            case [Timer(name=name, milliseconds=2.0, least=1.0)]:
                if name not in self.names:
                    self.names.append(name)
                self[key] = self.names.index(name)
            case _:
                self[key] = -1
        return self[key]

    def is_heading(self, line: bytes) -> bool:
        """Return whether a line is the heading of a table, and says nothing else."""
        if line not in self._headings:
            self._headings[line] = line.endswith(_HEADING) and not parse(line)
        return self._headings[line]
