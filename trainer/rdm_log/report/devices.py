# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's GPU records → the history of its GPUs, in at most a few hundred columns.

``NODE.gpu.jsonl`` has a line of JSON for each moment, with its time; ``NODE.gpu`` has gpustat's lines,
``[0] NVIDIA A10 | 49'C,  98 % | 21040 / 22731 MB |``, with or without a line of host and time above each
record. From a long file only one moment per column is read: a day of a thousand nodes has gigabytes.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rdm_log.observe import STREAM
from rdm_log.scan import regular

COLUMNS = 200
"""The most columns for a node."""
MEASURES: Mapping[str, tuple[str, str, bool]] = {
    "utilisation": ("Utilisation", "%", False),
    "temperature": ("Temperature", "°C", True),
    "memory": ("Memory in use", "%", True),
    "power": ("Power", "W", False),
    "clock": ("Clock", "MHz", False),
}
"""Name → (title, unit, whether a column shows the highest value instead of the mean)."""

_WHOLE = 64 * 1024
"""A file of at most this many bytes is read whole."""
_WINDOW = 16 * 1024
_GAP = 4.0
"""Two moments have a gap between them if they are this many times as far apart as their neighbours."""
_LINE = re.compile(
    rb"^\[(\d{1,3})\] ([^|\n]{0,80}?) *\|(?: *(\d+)'C,?)?(?: *(\d+) ?%)?"
    rb"(?:, *(\d+) / +[\d?]+ W)?[^|\n]*\| *(\d+) / +(\d+) MB \|",
    re.MULTILINE,
)
_TIME = re.compile(rb"^\S+ +\w{3} (\w{3} +\d+ \d\d:\d\d:\d\d \d{4})", re.MULTILINE)


class _Reading(NamedTuple):
    """One GPU at one moment, in the order of ``MEASURES``; None if unknown."""

    utilisation: float | None
    temperature: float | None
    memory: float | None
    power: float | None
    clock: float | None = None


_Moment = dict[int, _Reading]


def history(path: Path, columns: int = COLUMNS) -> dict[str, Any]:
    """Return the history of a node's GPUs as plain data; empty if the file has none.

    Args:
        path: The file, of either kind.
        columns: The most columns.

    Returns:
        ``name`` of the GPUs; ``columns``; ``times`` of the first and the last record, or None; ``sampled``,
        true if not all records were read; and ``gpus``: by GPU number and known measure of ``MEASURES``, a
        list of values at equal intervals of this time, None where nothing is known.
    """
    try:
        if regular(path).name.endswith(STREAM):
            return _of_stream(path, columns)
        return _of_lines(path, columns)
    except OSError:
        return {}


def node_of(file: Path) -> str:
    """Return the node of a file of GPU records."""
    return file.name.removesuffix(STREAM).removesuffix(".gpu")


# The stream.


def _of_stream(path: Path, columns: int) -> dict[str, Any]:
    size = path.stat().st_size
    records = sorted(_stream_records(path, size, columns), key=lambda one: one[0])
    if not records:
        return {}
    name = next((name for _, name, _ in reversed(records) if name), "")
    begin, end = records[0][0], records[-1][0]
    count = min(columns, len(records))
    of_column: list[list[_Moment]] = [[] for _ in range(count)]
    column_of = [min(count - 1, int((at - begin) / max(end - begin, 1e-9) * count)) for at, _, _ in records]
    for column, (_, _, moment) in zip(column_of, records, strict=True):
        of_column[column].append(moment)
    # Old records are thinned, so they are far apart, but they still cover the time between them.
    waits = [later[0] - earlier[0] for earlier, later in itertools.pairwise(records)]
    for number, wait in enumerate(waits):
        neighbours = [*waits[max(0, number - 1) : number], *waits[number + 1 : number + 2]]
        if neighbours and wait <= _GAP * min(neighbours):
            for column in range(column_of[number] + 1, column_of[number + 1]):
                of_column[column].append(records[number][2])
    times = [datetime.datetime.fromtimestamp(at).isoformat(" ", "seconds") for at in (begin, end)]
    return _plain(name, times, of_column, is_sampled=_is_long(size))


def _is_long(size: int) -> bool:
    return size > _WHOLE


def _stream_records(path: Path, size: int, columns: int) -> Iterator[tuple[float, str, _Moment]]:
    """Yield the time, the name of the GPUs and their readings, from records evenly spaced in the file."""
    with path.open("rb") as file:
        for line in file if not _is_long(size) else _lines_within(file, size, columns):
            try:
                record = json.loads(line)
                devices = {int(one["index"]): one for one in record["devices"]}
                at = float(record["time"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # it is being written, or is another program's
            moment = {gpu: _reading(one) for gpu, one in sorted(devices.items())}
            if moment:
                yield at, str(next(iter(devices.values())).get("name", "")), moment


def _lines_within(file: Any, size: int, count: int) -> Iterator[bytes]:
    last = -1
    for number in range(count):
        file.seek(max(0, number * size // count - 1))
        file.readline()
        begin = file.tell()
        if begin != last and (line := file.readline()):
            yield line
        last = begin


def _reading(device: Mapping[str, Any]) -> _Reading:
    used, total = device.get("used"), device.get("total")
    return _Reading(
        device.get("percent"),
        device.get("celsius"),
        100.0 * used / total if used is not None and total else None,
        device.get("watts"),
        (device.get("clocks") or {}).get("sm"),
    )


# gpustat's lines.


def _of_lines(path: Path, columns: int) -> dict[str, Any]:
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        head = file.read(_WINDOW)
        file.seek(max(0, size - _WINDOW))
        end = file.read()
        if _is_long(size):
            moments = list(_moments_within(file.fileno(), size, columns, head))
        else:
            file.seek(0)
            moments = list(_records(file.read()))
    if not moments:
        return {}
    line = _LINE.search(head) or _LINE.search(end)
    count = min(columns, len(moments))
    of_column = [
        moments[column * len(moments) // count : (column + 1) * len(moments) // count]
        for column in range(count)
    ]
    name = line[2].decode("utf-8", "replace") if line else ""
    return _plain(name, _times(head, end), of_column, is_sampled=_is_long(size))


def _moments_within(file: int, size: int, count: int, head: bytes) -> Iterator[_Moment]:
    """Yield whole records, evenly spaced in a long file."""
    starts = [found.start() for found in re.finditer(rb"^\[0\] ", head, re.MULTILINE)]
    record = max((later - earlier for earlier, later in itertools.pairwise(starts)), default=_WINDOW // 3)
    # Wherever the window begins, it has a whole record between two others.
    window = min(_WINDOW, 3 * record)
    for number in range(count):
        found = list(itertools.islice(_records(os.pread(file, window, number * (size - window) // count)), 2))
        if len(found) == 2:
            yield found[1]


def _records(data: bytes) -> Iterator[_Moment]:
    record: _Moment = {}
    for index, _, celsius, percent, watts, used, whole in map(re.Match.groups, _LINE.finditer(data)):
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


def _times(head: bytes, end: bytes) -> list[str] | None:
    """Return the times of the first and the last record."""
    first, last = _TIME.search(head), _TIME.findall(end)
    if first is None or not last:
        return None
    try:
        return [_iso(first[1]), _iso(last[-1])]
    except ValueError:
        return None


def _iso(text: bytes) -> str:
    """Return gpustat's time in ISO format."""
    moment = datetime.datetime.strptime(text.decode(), "%b %d %H:%M:%S %Y")
    return moment.isoformat(" ")


# Both.


def _plain(
    name: str, times: list[str] | None, of_column: Sequence[Sequence[_Moment]], *, is_sampled: bool
) -> dict[str, Any]:
    """Return the result of ``history``, from the moments of each column."""
    columns = len(of_column)
    found: dict[int, tuple[list[float | None], ...]] = {}
    highest = [highest for _, _, highest in MEASURES.values()]
    for column, moments in enumerate(of_column):
        for gpu, readings in _by_gpu(moments).items():
            if gpu not in found:
                found[gpu] = tuple([None] * columns for _ in MEASURES)
            reading = readings[0] if len(readings) == 1 else _merged(readings, highest)
            for values, value in zip(found[gpu], reading, strict=True):
                if value is not None:
                    values[column] = round(value, 1)
    gpus = {
        str(gpu): {
            measure: values
            for measure, values in zip(MEASURES, own, strict=True)
            if any(value is not None for value in values)
        }
        for gpu, own in sorted(found.items())
    }
    return {"name": name, "columns": columns, "times": times, "sampled": is_sampled, "gpus": gpus}


def _merged(readings: Sequence[_Reading], highest: Sequence[bool]) -> list[float | None]:
    """Merge the readings of one GPU in a column."""
    found: list[float | None] = []
    for index, takes_highest in enumerate(highest):
        values = [value for one in readings if (value := one[index]) is not None]
        mean = sum(values) / len(values) if values else None
        found.append(max(values) if values and takes_highest else mean)
    return found


def _by_gpu(moments: Sequence[_Moment]) -> dict[int, list[_Reading]]:
    found: dict[int, list[_Reading]] = {}
    for moment in moments:
        for gpu, reading in moment.items():
            found.setdefault(gpu, []).append(reading)
    return found
