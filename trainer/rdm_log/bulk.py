# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse hundreds of training lines at once, field by field instead of line by line.

A log that has only training lines is the slowest to read: nothing can be skipped. Neighbouring lines have the
same fields in the same order, so all of them are split at ``|`` in one call. Any other line is left to
``lines.parse``, which gives the same result.
"""

from __future__ import annotations

import functools
import operator
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rdm_log.grammars import MEMORY
from rdm_log.lines import COUNTED, MILLISECONDS, SECONDS, Step, Timer, field_name, loss_name, parse, prefix

__all__ = ["Many", "Range", "RankTimes", "Steps", "steps_in_bulk"]

_LEAST = 8
"""The least number of neighbouring lines that are read together."""
_PIECE = 32 * 1024
"""Bytes that are split at once. One line that differs slows down the whole piece."""
_PROBE = 4 * 1024
"""Bytes that are checked to decide whether training lines are dense."""
_WORD = b"iteration "
_LINE = re.compile(rb"([^\n|]*?)iteration +\d+/ *\d+ *\|[^\n]*\|\n")
_HEAD = re.compile(rb"(?:^|\n)([^\n|]*?)iteration +(\d{1,15})/ *(\d{1,15}) *\|")
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_NUMBER = b"0123456789.E+- "


class Range(NamedTuple):
    """The sum, the minimum and the maximum of a column."""

    total: float
    least: float
    most: float


@dataclass(frozen=True)
class Steps:
    """Neighbouring training lines with the same fields and ascending steps.

    Attributes:
        data: The lines; only the first and the last ones unless ``is_whole``.
        iterations: The step of each line.
        values: The requested fields by name, each with a number for every line.
        ranges: The range of each of these fields.
        loss: The name of the loss; empty when there is none.
        times: ``Step.time`` of the first and of the last line.
        is_whole: ``data`` has all lines, so ``each`` works.
    """

    data: bytes
    iterations: array[int]
    values: dict[str, array[float]]
    ranges: dict[str, Range]
    loss: str = ""
    times: tuple[str, str] = ("", "")
    is_whole: bool = True

    def each(self) -> Iterator[Step]:
        """Yield the steps one by one; needs ``is_whole``."""
        assert self.is_whole
        return self._parsed(self.data[:-1].split(b"\n"))

    def first(self) -> Step:
        """Return the first step."""
        return next(self._parsed([self.data[: self.data.index(b"\n")]]))

    def last(self, count: int) -> list[Step]:
        """Return the last steps.

        Args:
            count: How many; at most as many as there are.
        """
        return list(self._parsed(self._lasts(count)))

    def ends(self, count: int) -> Steps:
        """Return the same steps with only the first line and the last ``count`` lines, to save memory."""
        if len(self.iterations) <= count + 1:
            return self
        first = self.data[: self.data.index(b"\n")]
        data = b"\n".join([first, *self._lasts(count), b""])
        return replace(self, data=data, is_whole=False)

    def _lasts(self, count: int) -> list[bytes]:
        return self.data[:-1].rsplit(b"\n", count)[-count:]

    @staticmethod
    def _parsed(lines: Sequence[bytes]) -> Iterator[Step]:
        return (step for line in lines for step in parse(line) if isinstance(step, Step))


class RankTimes(NamedTuple):
    """One of Megatron's timers on many ranks, in milliseconds.

    Attributes:
        name: The timer.
        ranks: The ranks.
        milliseconds: The time of each rank.
    """

    name: str
    ranks: array[int]
    milliseconds: array[float]

    def each(self) -> Iterator[Timer]:
        """Yield the timers one by one."""
        for rank, milliseconds in zip(self.ranks, self.milliseconds, strict=True):
            yield Timer(self.name, milliseconds, rank)


Many = Steps | RankTimes
"""Many records as one; ``each`` yields them one by one."""


def steps_in_bulk(data: bytes, *, every: bool) -> Iterator[tuple[int, int, Steps]]:
    """Yield neighbouring training lines, with the positions where they begin and end.

    Yields nothing unless training lines are dense: elsewhere the search costs as much as ordinary reading.

    Args:
        data: Lines.
        every: Read every field; otherwise only those that are counted over all steps.
    """
    if not (_is_dense(data[:_PROBE]) or _is_dense(data[-_PROBE:])):
        return
    for begin, end in _pieces(data):
        piece = data[begin:end]
        if (steps := _steps(piece, every=every)) is not None:
            yield begin, end, steps
            continue
        for first, last in _stretches(piece):
            if (steps := _steps(piece[first:last], every=every)) is not None:
                yield begin + first, begin + last, steps


def _pieces(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of pieces of whole lines."""
    begin = 0
    while begin < len(data):
        cut = data.rfind(b"\n", begin, begin + _PIECE) + 1 or data.find(b"\n", begin) + 1 or len(data)
        yield begin, cut
        begin = cut


def _stretches(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of stretches of training lines with prefixes that differ only in digits."""
    position = data.find(_WORD)
    while position >= 0:
        begin = data.rfind(b"\n", 0, position) + 1
        first = _LINE.match(data, begin)
        found = _shape(first[1].translate(_DIGITS)).match(data, begin) if first else None
        if found and data.count(b"\n", begin, found.end()) >= _LEAST:
            yield begin, found.end()
        position = found.end() if found else data.find(b"\n", position)
        position = data.find(_WORD, position) if position >= 0 else -1


def _is_dense(data: bytes) -> bool:
    """Return whether more than half of the lines are training lines."""
    return 2 * data.count(_WORD) > data.count(b"\n")


@functools.lru_cache(maxsize=64)
def _shape(before: bytes) -> re.Pattern[bytes]:
    pattern = re.escape(before).replace(b"0", rb"\d")
    return re.compile(rb"(?:" + pattern + rb"iteration [^\n]*\|\n)+")


def _steps(data: bytes, *, every: bool) -> Steps | None:
    """Return the parsed training lines; None when their fields differ or their steps do not ascend."""
    count = data.count(b"\n")
    if count < _LEAST or not data.endswith(b"|\n"):
        return None
    keys, names = _fields(data[: data.index(b"\n")])
    width = len(keys) + 1
    parts = data.split(b"|")
    if not keys or len(parts) != count * width + 1:
        return None
    heads = b"|".join(parts[::width])
    head = _HEAD.findall(heads)
    if len(head) != count or b"loss at" in heads:
        return None
    before, numbers, totals = zip(*head, strict=True)
    times = _times(before)
    iterations = array("q", map(int, numbers))
    if iterations[-1] > min(filter(None, map(int, set(totals))), default=iterations[-1]):
        return None
    if times is None or not all(map(operator.lt, iterations, iterations[1:])):
        return None
    loss, wanted = loss_name(dict.fromkeys(names, 0.0)), _needed(names, every=every)
    values: dict[str, array[float]] = {}
    for key, name, column in zip(keys, names, (parts[n::width] for n in range(1, width)), strict=True):
        try:
            found = _column(column, key, needed=name in wanted)
        except ValueError:
            return None
        if found is not None:
            values[name] = found
    values = _in_milliseconds(values)
    return Steps(data, iterations, values, _ranges(values), loss, times)


def _ranges(values: Mapping[str, array[float]]) -> dict[str, Range]:
    return {name: Range(sum(column), min(column), max(column)) for name, column in values.items()}


def _needed(names: Sequence[str], *, every: bool) -> list[str]:
    """Return the names of the fields to read."""
    loss = loss_name(dict.fromkeys(names, 0.0))
    return [name for name in names if every or name in COUNTED or name == loss]


def _in_milliseconds(values: dict[str, array[float]]) -> dict[str, array[float]]:
    if SECONDS in values:
        values[MILLISECONDS] = array("d", [1000.0 * one for one in values.pop(SECONDS)])
    return values


def _column(texts: Sequence[bytes], key: bytes, *, needed: bool) -> array[float] | None:
    """Return the numbers of a field, or None when they are not needed.

    Raises:
        ValueError: A line has another field there, or no plain number.
    """
    if texts[0] == texts[-1] and texts.count(texts[0]) == len(texts):
        return array("d", [float(texts[0][len(key) + 1 :])]) * len(texts)
    text, mark = b"|" + b"|".join(texts), b"|" + key + b":"
    if needed:
        nothing, *values = text.split(mark)
        if nothing or len(values) != len(texts):
            raise ValueError
        return array("d", map(float, values))
    # Only the field's name and the characters of numbers: no other process wrote into the lines.
    if text.count(mark) != len(texts) or text.translate(None, _NUMBER) != mark.translate(None, _NUMBER) * len(
        texts
    ):
        raise ValueError
    return None


@functools.lru_cache(maxsize=1024)
def _keys(parts: tuple[bytes, ...]) -> tuple[list[bytes], list[str]]:
    names = [field_name(key) for key in parts]
    is_plain = len(set(names)) == len(names) and MEMORY.keys().isdisjoint(names)
    return (list(parts), names) if is_plain else ([], [])


def _fields(line: bytes) -> tuple[list[bytes], list[str]]:
    """Return the keys of a line's fields as written, and their names; both empty when one is not plain."""
    parts = [part.rpartition(b":") for part in line.split(b"|")[1:-1]]
    if not all(colon and b"[" not in key and b"loss at" not in key for key, colon, _ in parts):
        return [], []
    keys, names = _keys(tuple(key for key, _, _ in parts))
    if MILLISECONDS in names and SECONDS in names:
        return [], []
    return keys, names


def _times(before: Sequence[bytes]) -> tuple[str, str] | None:
    """Return the times of the first and the last line; None when more than the time differs before lines."""
    if before.count(before[0]) == len(before):
        time = prefix(before[0])[1]
        return time, time
    first, last = min(before), max(before)
    shapes = b"\n".join(before).translate(_DIGITS).split(b"\n")
    tag, begin = prefix(first)
    if tag or not begin or len(set(shapes)) > 1:
        return None
    return begin, prefix(last)[1]
