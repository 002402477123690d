# SPDX-License-Identifier: GPL-3.0-or-later
"""The sections of FASOP's ``get_result.sh``, with the same titles and formats.

A user reads these first: the last lines of each node's output, errors and GPU records, the job info, and the
times of the steps.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdm_log.grammars import MILLISECONDS
from rdm_log.heads import head, info_of, info_of_job
from rdm_log.records import Step
from rdm_log.scan import pieces, read, records, regular, with_pieces
from rdm_log.tails import count_lines, tail

_TIMES = 20
"""The number of last step times that are shown."""
_DEBUG = 11
"""The step whose time the script prints, to show whether every step is logged."""
_RULE = "*" * 19
_STREAMS = (("output", "out", 3), ("error", "err", 1), ("gpu", "gpu", 4))
_DEVICE = re.compile(r"\[(\d+)\] ")


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        title: The script's title.
        lines: The lines below it.
        total: The number of lines in the files whose ends it shows; None if it shows no files.
        is_whole: It is about the job, not a node: one node's is enough.
    """

    title: str
    lines: tuple[str, ...]
    total: int | None = None
    is_whole: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**dataclasses.asdict(self), "lines": list(self.lines)}


def text(found: Sequence[Section]) -> str:
    """Return sections in the script's format."""
    lines: list[str] = []
    for section in found:
        lines += [f"{_RULE} {section.title} {_RULE}", *section.lines]
        if section.total is not None:
            lines.append(f"{section.total} lines..")
    return "\n".join(lines)


def sections(
    directory: Path, job: str, *, info: Mapping[str, str] | None = None, node: str = ""
) -> list[Section]:
    """Return the sections of a job's logs.

    Args:
        directory: Has ``NODE.out``, ``NODE.err`` and ``NODE.gpu``.
        job: The job's name or number.
        info: The job info; by default what the job's scripts wrote at the head of their output.
        node: Read only this node's files; by default all nodes'.
    """
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    names = [name for name in names if not name.startswith(".")]
    names = [name for name in names if not node or name.rpartition(".")[0] == node]
    found = []
    for word, suffix, lines in _STREAMS:
        files = [directory / name for name in names if name.endswith(f".{suffix}")]
        total = sum(count_lines(file) for file in files)
        found.append(Section(f"last {word} message", tuple(_ends(files, lines)), total))
    outputs = [directory / name for name in names if name.endswith(".out")]
    job_values = (
        info if info is not None else job_info([one for file in outputs for one in with_pieces(file)])
    )
    items = (f"items: {' '.join(names)}",)
    lines_of_info = (f"{key}: {value}" for key, value in job_values.items())
    found.append(Section(f"job info {job}", (*items, *lines_of_info), is_whole=True))
    found.append(Section("iteration time", tuple(_times(outputs)), is_whole=True))
    return found


def _ends(files: Sequence[Path], lines: int) -> list[str]:
    """Return the paths of files, then the last lines of each below its name."""
    shown = ["  ".join(map(str, files))] if files else []
    for number, file in enumerate(files):
        end, last = tail(file, max(lines, 64)), lines
        if file.suffix == ".gpu" and end and (device := _DEVICE.match(end[-1])):
            # The last record, however many devices the node has.
            last = int(device[1]) + 1
        shown += [*([""] if number else []), f"==> {file} <==", *end[-last:]]
    return shown


def job_info(outputs: Sequence[Path]) -> dict[str, str]:
    """Return the job info from a job's outputs; see ``info_of_job``."""
    infos: list[dict[str, str]] = []
    for group in pieces(outputs)[:2]:
        try:
            infos.append(info_of(head(group[0])))
        except OSError:
            infos.append({})
    return info_of_job(infos)


def _times(outputs: Sequence[Path]) -> list[str]:
    """Return the times of the last logged steps, and that of step ``_DEBUG``."""
    for file in outputs:
        times: collections.deque[tuple[int, float]] = collections.deque(maxlen=_TIMES)
        debug = 0.0
        try:
            for record in records(read(list(map(regular, with_pieces(file))))):
                if isinstance(record, Step) and MILLISECONDS in record.values:
                    times.append((record.iteration, record.values[MILLISECONDS]))
                    if record.iteration == _DEBUG:
                        debug = record.values[MILLISECONDS]
        except OSError:
            continue
        if times:
            shown = [f"iteration {iteration} : {time / 1000:.4f} s" for iteration, time in times]
            return [*shown, f"debug?  : {debug / 1000:.4f} s" if debug else "debug?  : 0"]
    return []
