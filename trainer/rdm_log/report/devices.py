# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's ``.gpu`` file → how its GPUs were over time, in a few hundred columns.

The file has gpustat's lines, ``[0] NVIDIA A10 | 49'C,  98 % | 21040 / 22731 MB |``, with or without a line of
host and time above each record. Of a file beyond a budget, windows that lie evenly in it are read.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["COLUMNS", "MEASURES", "history"]

COLUMNS = 200
"""At most so many moments are told of a node."""
MEASURES: Mapping[str, tuple[str, str, bool]] = {
    "utilisation": ("Utilisation", "%", False),
    "temperature": ("Temperature", "°C", True),
    "memory": ("Memory in use", "%", True),
    "power": ("Power", "W", False),
}
"""Name → (title, unit, whether the highest counts; otherwise the mean) of moments that share a column."""

_WINDOW = 16 * 1024
_LINE = re.compile(
    rb"^\[(\d{1,3})\] ([^|\n]{0,80}?) *\|(?: *(\d+)'C,?)?(?: *(\d+) ?%)?"
    rb"(?:, *(\d+) / +[\d?]+ W)?[^|\n]*\| *(\d+) / +(\d+) MB \|",
    re.MULTILINE,
)
_TIME = re.compile(rb"^\S+ +\w{3} (\w{3} +\d+ \d\d:\d\d:\d\d \d{4})", re.MULTILINE)


class _Reading(NamedTuple):
    """One GPU at one moment, in the order of ``MEASURES``; None is not told."""

    utilisation: float | None
    temperature: float | None
    memory: float | None
    power: float | None


def history(path: Path, budget: int = 1 << 20) -> dict[str, Any]:
    """Return how the GPUs of a node were over time, as plain data; empty where the file tells nothing.

    Args:
        path: The file.
        budget: At most so many bytes of it are read.

    Returns:
        ``name`` of the GPUs, ``columns``, ``times`` of the first and the last record where they are told,
        ``sampled`` when not all was read, and ``gpus``: by number, for each of ``MEASURES`` that is told, a
        list of COLUMNS values.
    """
    try:
        size = path.stat().st_size
        moments = list(_moments(path, size, budget))
    except OSError:
        return {}
    if not moments:
        return {}
    columns = min(COLUMNS, len(moments))
    found: dict[int, dict[str, list[float | None]]] = {}
    for column in range(columns):
        begin, end = column * len(moments) // columns, (column + 1) * len(moments) // columns
        for gpu, readings in _by_gpu(moments[begin:end]).items():
            own = found.setdefault(gpu, {name: [None] * columns for name in MEASURES})
            for place, (name, (_, _, highest)) in enumerate(MEASURES.items()):
                values = [value for one in readings if (value := one[place]) is not None]
                if values:
                    own[name][column] = round(max(values) if highest else sum(values) / len(values), 1)
    gpus = {
        str(gpu): {name: values for name, values in own.items() if any(v is not None for v in values)}
        for gpu, own in sorted(found.items())
    }
    name, times = _told(path, size)
    return {"name": name, "columns": columns, "times": times, "sampled": size > budget, "gpus": gpus}


def _by_gpu(moments: Sequence[Mapping[int, _Reading]]) -> dict[int, list[_Reading]]:
    found: dict[int, list[_Reading]] = {}
    for moment in moments:
        for gpu, reading in moment.items():
            found.setdefault(gpu, []).append(reading)
    return found


def _moments(path: Path, size: int, budget: int) -> Iterator[dict[int, _Reading]]:
    """Yield the records: what all GPUs of the node said at one moment."""
    with path.open("rb", buffering=0) as file:
        if size <= budget:
            yield from _records(file.read())
            return
        windows = max(1, budget // _WINDOW)
        for number in range(windows):
            file.seek(number * (size - _WINDOW) // max(1, windows - 1))
            # The first and the last record of a window are cut.
            yield from list(_records(file.read(_WINDOW)))[1:-1]


def _records(data: bytes) -> Iterator[dict[int, _Reading]]:
    record: dict[int, _Reading] = {}
    for index, _, celsius, percent, watts, used, whole in _LINE.findall(data):
        gpu, most = int(index), int(whole)
        if record and gpu <= next(reversed(record)):
            yield record
            record = {}
        record[gpu] = _Reading(
            float(percent) if percent else None,
            float(celsius) if celsius else None,
            100.0 * int(used) / most if most else None,
            float(watts) if watts else None,
        )
    if record:
        yield record


def _told(path: Path, size: int) -> tuple[str, list[str] | None]:
    """Return the GPUs' name, and the times of the first and the last record."""
    with path.open("rb", buffering=0) as file:
        head = file.read(_WINDOW)
        file.seek(max(0, size - _WINDOW))
        end = file.read()
    line = _LINE.search(head) or _LINE.search(end)
    first, last = _TIME.search(head), _TIME.findall(end)
    name = line[2].decode("utf-8", "replace") if line else ""
    if first is None or not last:
        return name, None
    try:
        return name, [_iso(first[1]), _iso(last[-1])]
    except ValueError:
        return name, None


def _iso(text: bytes) -> str:
    """Return a time as gpustat writes it, in ISO's form."""
    moment = datetime.datetime.strptime(text.decode(), "%b %d %H:%M:%S %Y")
    return moment.isoformat(" ")
