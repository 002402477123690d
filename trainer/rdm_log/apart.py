# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of timers, thousands at once, taken out of a block; what stands between is read as if they were not.

Megatron writes them with every step, so that training lines are neighbours without them. Its tables of the
shortest and the longest time have lines of one form, ``    NAME ....: (12.30, 45.60)``: seen from the end of
each the digits stand in columns, and numpy reads them. What has another form stays.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rdm_log.bulk import PROBE, Many, RankTimes, ShortestLongest
from rdm_log.decimals import ending_at
from rdm_log.figures import ascending
from rdm_log.lines import Timer, parse
from rdm_log.rank_lines import RankLines, TimerLines

if TYPE_CHECKING:
    import numpy as np

    Integers = np.ndarray[Any, np.dtype[np.int64]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["Above", "Apart", "are_tables", "ranks_apart", "tables_apart"]

_HEADING = b"(min, max) time across ranks (ms):"
_MARK = b"...: ("
_LINE = re.compile(rb"\.\.: \(\d+\.(\d+), \d+\.\d+\)\n")
_FEW = 64
"""So few times are told one by one."""


def are_tables(data: bytes) -> bool:
    """Return whether half of some lines or more are of tables. Among fewer numpy wins nothing."""
    return 2 * data.count(_MARK) > data.count(b"\n")


class Apart(ABC):
    """Timers that stood in a block between other lines.

    Attributes:
        rest: The other lines.
    """

    def __init__(self, rest: bytes, places: Integers) -> None:
        """Take note of where they stood.

        Args:
            rest: The others.
            places: How many bytes of the others stand before each.
        """
        self.rest = rest
        self._places = places
        self._told = 0

    def until(self, place: int) -> Iterator[Timer | Many]:
        """Yield what stood before a place in the others and was not yet told."""
        first, self._told = self._told, int(self._places.searchsorted(place, "right"))
        if first < self._told:
            yield from self._times(first, self._told)

    @abstractmethod
    def _times(self, first: int, last: int) -> Iterator[Timer | Many]:
        """Yield some of them, by name where they are many."""


class Tables(Apart):
    """Lines of tables."""

    def __init__(
        self, rest: bytes, places: Integers, names: Sequence[str], who: Integers, times: tuple[Floats, Floats]
    ) -> None:
        """Take note of the lines.

        Args:
            rest: As for ``Apart``.
            places: As for ``Apart``.
            names: Names of timers.
            who: Which of them each line tells of.
            times: The shortest and the longest times.
        """
        super().__init__(rest, places)
        self._names, self._who, self._both = names, who, times

    def _times(self, first: int, last: int) -> Iterator[Timer | ShortestLongest]:
        own = slice(first, last)
        least, most = (times[own] for times in self._both)
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


def tables_apart(data: bytes) -> Tables | None:
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
    return Tables(
        _without(data, begins, gone),
        stays[lines],
        known.names,
        who[is_one],
        (least[is_one] / scale, most[is_one] / scale),
    )


class Above(NamedTuple):
    """What is above a block.

    Attributes:
        is_open: Timers of all ranks may go on in the block.
        name: Of which timer; empty for none.
        silence: So many bytes stand behind the last of them.
    """

    is_open: bool
    name: str
    silence: int


class Ranks(Apart):
    """Lines of timers of all ranks, below each name a stretch of them."""

    def __init__(self, rest: bytes, stretches: _Stretches, lines: TimerLines) -> None:
        """Take note of the stretches.

        Args:
            rest: As for ``Apart``.
            stretches: Where they are.
            lines: The lines.
        """
        super().__init__(rest, stretches.places)
        self._stretches, self._lines = stretches, lines

    def _times(self, first: int, last: int) -> Iterator[RankTimes]:
        import numpy as np

        own = slice(first, last)
        names, (who, begins, ends) = self._stretches.names, (one[own] for one in self._stretches[1:4])
        numbers = who.tolist()
        different = dict.fromkeys(numbers)
        if len(different) == len(numbers):
            for number, begin, end in zip(numbers, begins.tolist(), ends.tolist(), strict=True):
                yield _rank_times(
                    names[number], self._lines.ranks[begin:end], self._lines.milliseconds[begin:end]
                )
            return
        for number in different:
            which = np.flatnonzero(who == number)
            sizes = ends[which] - begins[which]
            # Of those that a block's end has cut there are fewer.
            borders = (np.flatnonzero(sizes[1:] != sizes[:-1]) + 1).tolist()
            for begin, end in zip((0, *borders), (*borders, len(which)), strict=True):
                yield from self._rounds(names[number], begins[which[begin:end]], int(sizes[begin]))

    def _rounds(self, name: str, begins: Integers, size: int) -> Iterator[RankTimes]:
        """Yield stretches of so many lines each: as one where all are of the same ranks."""
        import numpy as np

        lines = np.add.outer(begins, np.arange(size))
        ranks, milliseconds = self._lines.ranks[lines], self._lines.milliseconds[lines]
        if (ranks == ranks[0]).all():
            yield _rank_times(name, ranks[0], milliseconds)
        else:
            for each in zip(ranks, milliseconds, strict=True):
                yield _rank_times(name, *each)


def _rank_times(name: str, ranks: Integers, milliseconds: Floats) -> RankTimes:
    told = array("q", ranks.tobytes())
    usual = ascending(told[0], len(told))
    # What many have is one, and is handed to another process once.
    return RankTimes(name, usual if told == usual else told, array("d", milliseconds.tobytes()))


def ranks_apart(
    data: bytes,
    headings: Sequence[tuple[int, int]],
    above: Above,
    tag: bytes,
    pattern: re.Pattern[bytes],
    gap: int,
) -> tuple[Ranks, Above] | None:
    """Take timers of all ranks out of a block, with their headings; None where it is not plain.

    Args:
        data: Lines.
        headings: Where the headings of such timers begin, and where their newlines are.
        above: What is above the block.
        tag: What stands before each line.
        pattern: As for ``RankLines.lines``.
        gap: So many bytes of others may be between two of their lines.

    Returns:
        The timers, and what is above the block that follows.
    """
    import numpy as np

    found = RankLines(data)
    own = found.lines(tag, pattern)
    if own is not None and not above.is_open:
        own = own.since(int(own.begins.searchsorted(headings[0][0])))
    if own is None or not len(own.ends) or parse(tag + b"  rank 1: 1.0"):
        return None
    if any(parse(tag + b"  " + name + b":") for name in {*own.names}):
        return None
    of_headings = np.asarray(headings, np.int64).reshape(-1, 2)
    behind = own.begins.searchsorted(of_headings[:, 0])
    before = np.concatenate(([-1 - above.silence], own.ends))
    np.maximum.at(before, behind, of_headings[:, 1])
    if (own.begins - 1 - before[:-1] > gap).any():
        return None
    gone = np.zeros(len(found.begins) - 1, np.bool_)
    which = found.begins.searchsorted(of_headings[:, 0])
    gone[own.numbers] = gone[which] = True
    stays = np.where(gone, 0, np.diff(found.begins)).cumsum()
    stretches = _stretches(own, behind, stays[which], above.name)
    apart = Ranks(_without(data, found.begins[:-1], gone), stretches, own)
    return apart, Above(True, stretches.last, len(data) - int(before[-1]) - 1)


class _Stretches(NamedTuple):
    """Ranks' lines below names of timers, and below headings between them.

    Attributes:
        names: Names of timers; empty for what is nobody's.
        who: Which of them each stretch is of.
        begins: Its first line.
        ends: The one behind its last.
        places: How many bytes of the other lines stand before its heading.
        last: The name below the last line.
    """

    names: Sequence[str]
    who: Integers
    begins: Integers
    ends: Integers
    places: Integers
    last: str


def _stretches(own: TimerLines, headings: Integers, places: Integers, above: str) -> _Stretches:
    """Return the stretches of ranks' lines.

    Args:
        own: The lines.
        headings: Before which of them headings stand.
        places: Of each heading.
        above: The name that is above the first line; empty for none.
    """
    import numpy as np

    # What stands right below a heading is nobody's, and what no name of this block is above, that one's.
    numbers = {name: 2 + number for number, name in enumerate(dict.fromkeys(own.names))}
    of_names = [numbers[name] for name in own.names]
    names = ["", above, *(name.decode("utf-8", "replace") for name in numbers)]
    # A heading stands before a name at the same line, and behind all of them is an end.
    lines = np.concatenate((headings, own.places))
    order = np.argsort(lines, kind="stable")
    is_name = np.concatenate(([False], order >= len(headings)))
    begins = np.concatenate(([0], lines[order])) + is_name
    ends = np.concatenate((lines[order], [len(own.ends)]))
    who = np.concatenate(([1], np.concatenate((np.zeros(len(headings)), of_names))[order])).astype(np.int64)
    at = np.concatenate(([0], places))[(~is_name).cumsum() - 1]
    is_one = (begins < ends) & np.asarray([bool(name) for name in names])[who]
    return _Stretches(names, who[is_one], begins[is_one], ends[is_one], at[is_one], names[who[-1]])


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
