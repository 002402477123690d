# SPDX-License-Identifier: GPL-3.0-or-later
"""Training lines as a table of bytes: a row for each line, its numbers in windows that all rows share.

Programs write numbers to fixed widths, so that thousands of neighbours have each ``|`` at the same place. A
line has the form of another one when every byte outside of the windows is the same: numpy compares all of
them at once, and what stands in the windows Python reads as it reads any number. A few lengths of lines, as
of ``9.999`` and ``10.000``, are a few forms. What has none is left to whoever reads line by line.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rdm_log.decimals import decimals

if TYPE_CHECKING:
    import numpy as np

    Integers = np.ndarray[Any, np.dtype[np.int64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["Form", "Range", "Table", "has_numpy"]

_LENGTHS = 8
"""So many lengths of lines are looked at, the most frequent ones."""
_DIGIT, _SPACE, _SIGN = 1, 2, 4


@functools.cache
def has_numpy() -> bool:
    """Load numpy, and return whether it is installed. A host that only runs an agent may do without."""
    try:
        importlib.import_module("numpy")
    except ImportError:
        return False
    return True


class Form(NamedTuple):
    """Where a training line has its numbers: from the first byte to the one behind the last, with spaces.

    Attributes:
        kind: Equal for forms whose numbers mean the same, though at other places.
        before: Of so many bytes at the line's begin each digit may be another, as those of a time.
        iteration: The step.
        total: The number of all steps.
        fields: Each field's number, by its name.
        needed: The fields that are wanted.
    """

    kind: tuple[bytes, ...]
    before: int
    iteration: tuple[int, int]
    total: tuple[int, int]
    fields: dict[str, tuple[int, int]]
    needed: Sequence[str]


class Range(NamedTuple):
    """The sum of a column, and its least and its greatest number."""

    total: float
    least: float
    most: float


class Table:
    """The lines of some bytes, and the numbers of those that have a form.

    Args:
        data: Lines; what stands behind the last newline does not count.
    """

    def __init__(self, data: bytes) -> None:
        import numpy

        self._np = numpy
        self._data = data
        self._bytes: Bytes = numpy.frombuffer(data, numpy.uint8)
        self._begins: Integers = numpy.concatenate(([0], self._ends()))
        self._forms: list[Form] = []
        self._kinds: dict[tuple[bytes, ...], int] = {}
        # Of each line the number of its kind's first form; -1 for none.
        self._form_of: Integers = numpy.full(len(self._begins) - 1, -1)
        self._iterations: Integers = numpy.zeros(len(self._begins) - 1, numpy.int64)
        self._values: dict[str, Floats] = {}

    def _ends(self) -> Integers:
        """Return the places behind the newlines."""
        np, data = self._np, self._data
        width = data.find(b"\n") + 1
        # Mostly all lines are as long as the first one.
        if width and data.count(b"\n") * width == len(data):
            ends: Integers = np.arange(width, len(data) + 1, width)
            if (self._bytes[ends - 1] == ord("\n")).all():
                return ends
        found: Integers = np.flatnonzero(self._bytes == ord("\n")) + 1
        return found

    def line(self, number: int) -> bytes:
        """Return a line with its newline."""
        return self._data[self._begins[number] : self._begins[number + 1]]

    def begins(self, first: int, last: int) -> list[int]:
        """Return where some lines begin.

        Args:
            first: The number of the first of them.
            last: The number of the last; it may be the one behind the end.
        """
        told: list[int] = self._begins[first : last + 1].tolist()
        return told

    def lengths(self, least: int) -> Iterator[Integers]:
        """Yield the lines that have the same length, of the most frequent lengths.

        Args:
            least: So many of them there must be.
        """
        np = self._np
        sizes = np.diff(self._begins)
        if len(sizes) >= least and (sizes == sizes[0]).all():
            yield np.arange(len(sizes))
            return
        lengths, counts = np.unique(sizes, return_counts=True)
        for which in np.argsort(-counts, kind="stable")[:_LENGTHS]:
            if counts[which] >= least:
                yield np.flatnonzero(sizes == lengths[which])

    def note(self, lines: Integers, form: Form) -> Integers:
        """Take note of those lines, of one length, that have the form of the first of them.

        Returns:
            The others.
        """
        np = self._np
        first, end = self.begins(lines[0], lines[0] + 1)
        if len(lines) == len(self._form_of) and len(lines) * (end - first) == len(self._data):
            rows = self._bytes.reshape(-1, end - first)
        else:
            rows = np.lib.stride_tricks.sliding_window_view(self._bytes, end - first)[self._begins[lines]]
        fits, varies = self._fits(rows, form)
        others: Integers = lines[~fits]
        if len(others):
            lines, rows = lines[fits], rows[fits]
        try:
            iterations = self._column(rows, varies, form.iteration, int)
            columns = {name: self._column(rows, varies, form.fields[name], float) for name in form.needed}
            totals = self._column(rows, varies, form.total, int)
        except (ValueError, OverflowError):
            # They look like numbers, and are none.
            return others
        if ((totals > 0) & (iterations > totals)).any():
            # Some are no steps.
            return others
        self._forms.append(form)
        self._form_of[lines] = self._kinds.setdefault(form.kind, len(self._forms) - 1)
        self._iterations[lines] = iterations
        for name, column in columns.items():
            self._values.setdefault(name, np.zeros(len(self._form_of)))[lines] = column
        return others

    def neighbours(self, least: int) -> Iterator[tuple[int, int, Form]]:
        """Yield where lines of a kind begin and end whose steps go up, and one's form.

        Args:
            least: So many of them there must be in a row.
        """
        np = self._np
        ends = (np.diff(self._form_of) != 0) | (np.diff(self._iterations) <= 0)
        borders = [0, *(np.flatnonzero(ends) + 1).tolist(), len(self._form_of)]
        for first, last in itertools.pairwise(borders):
            if last - first >= least and self._form_of[first] >= 0:
                yield first, last, self._forms[self._form_of[first]]

    def numbers(
        self, first: int, last: int, form: Form
    ) -> tuple[array[int], dict[str, array[float]], dict[str, Range]]:
        """Return the steps of lines, and the needed fields by name, with the range of each."""
        columns = {name: self._values[name][first:last] for name in form.needed}
        values = {name: array("d", column.tobytes()) for name, column in columns.items()}
        with self._np.errstate(over="ignore", invalid="ignore"):
            ranges = {
                name: Range(float(column.sum()), float(column.min()), float(column.max()))
                for name, column in columns.items()
            }
        return array("q", self._iterations[first:last].tobytes()), values, ranges

    def _fits(self, rows: Bytes, form: Form) -> tuple[Flags, Flags]:
        """Return which rows differ from the first one in nothing but numbers, and where any row differs."""
        np = self._np
        # What may stand at each place instead of the first one's byte.
        may = np.zeros(rows.shape[1], np.uint8)
        may[: form.before] = _classes()[rows[0, : form.before]] & _DIGIT
        for begin, end in form.fields.values():
            may[begin:end] = _DIGIT | _SPACE | _SIGN
        for begin, end in (form.iteration, form.total):
            may[begin:end] = _DIGIT | _SPACE
        may[form.iteration[1] - 1] = _DIGIT
        differs = rows != rows[0]
        varies: Flags = differs.any(axis=0)
        places = np.flatnonzero(varies)
        fixed, free = places[may[places] == 0], places[may[places] > 0]
        # The first one itself may say ``nan`` where others have a number.
        is_number = ((_classes()[rows[:, free]] & may[free]) > 0) | ~differs[:, free]
        fits: Flags = is_number.all(axis=1)
        if len(fixed):
            fits &= ~differs[:, fixed].any(axis=1)
        return fits, varies

    def _column(
        self, rows: Bytes, varies: Flags, window: tuple[int, int], number: type[int] | type[float]
    ) -> Any:
        """Return the numbers in a window of each row.

        Args:
            rows: The lines.
            varies: At which places of them not all are the same.
            window: Where the number is.
            number: What it is.

        Raises:
            ValueError: Something there is no number.
            OverflowError: A step has more than 64 bits.
        """
        np = self._np
        begin, end = window
        kind = np.int64 if number is int else np.float64
        places = np.flatnonzero(varies[begin:end])
        if not len(places):
            return np.full(len(rows), number(rows[0, begin:end].tobytes()), kind)
        found = decimals(rows[:, begin:end], places.tolist())
        if found is not None and (number is float or found.dtype == kind):
            return found
        texts = np.ascontiguousarray(rows[:, begin:end]).view(f"S{end - begin}").ravel()
        return np.fromiter(map(number, texts.tolist()), kind, len(texts))


@functools.cache
def _classes() -> Bytes:
    """Return of each byte which part of a number it is; 0 for none."""
    import numpy

    classes = numpy.zeros(256, numpy.uint8)
    for which, kind in ((b"0123456789", _DIGIT), (b" ", _SPACE), (b".E+-", _SIGN)):
        classes[list(which)] = kind
    return classes
