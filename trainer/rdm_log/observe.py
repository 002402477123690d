# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory of logs → what a verdict needs to know. It reads files and changes nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rdm_log import rank_timers
from rdm_log.errors import Finding, findings
from rdm_log.heads import ARGUMENT_OF, head, info_of, info_of_job, vocabulary_of
from rdm_log.scan import pieces
from rdm_log.signs import Device, Sample, Sign, of_node
from rdm_log.summary import NothingToRead, log_files, summarise
from rdm_log.tails import tail, text_lines
from rdm_log.verdict import Observed

__all__ = ["observe"]

_HEADS = 8
"""The heads of so many logs are read in any case: the first process', which says most, is among them."""
_MOST_LINES = 1_000_000
"""So many lines of a node's errors are looked through."""
_SETTING = re.compile(
    r"""^(?:export +)?([A-Z][A-Z0-9_]*)=["']?([^"'#\s$`]+)["']?[ \t]*(?:#.*)?$""", re.MULTILINE
)
_PROCESSORS = " CPU cores"
"""Ends the name of what our agents write of in the same form where a node has no GPU."""
_DEVICE = re.compile(rf"^\[\d+\] (?!\d+{_PROCESSORS}).*\| +(\d+) / +(\d+) MB \|(.*)$")
_MB = 1024 * 1024
"""What gpustat calls so."""
_DEVICES = 16
_SAMPLES = 120
_MOST_BYTES = 4 * 1024 * 1024
"""So many of the last moments of a node are looked at, in so many bytes."""


def observe(directory: Path, *, state: str = "", conf: Path | None = None, now: float) -> Observed:
    """Return what the logs of a job tell.

    Args:
        directory: A job's, or one with ``NODE.out``, ``NODE.err`` and ``NODE.gpu``.
        state: The launcher's or scheduler's word, where it is known.
        conf: What was asked for, as ``KEY=VALUE`` lines; values that a shell would compute are left out.
        now: Seconds since 1970.

    Raises:
        NothingToRead: The directory has no logs, or CONF cannot be read.
    """
    outputs = log_files(directory)
    try:
        runs: Sequence[dict[str, Any]] = summarise(outputs).runs
    except NothingToRead:
        runs = ()
    folder = outputs[0].parent
    changed = max(output.stat().st_mtime for output in outputs)
    logs = pieces(outputs)
    heads = [_head_of(log) for log in logs[:_HEADS]]
    info = info_of_job([one.info for one in heads])
    arguments = runs[-1]["arguments"] if runs else {}
    return Observed(
        state=state,
        runs=runs,
        findings=[one for file in sorted(folder.glob("*.err")) for one in _findings(file)],
        # What a script says that it runs is asked of the program that it starts.
        asked={
            **{ARGUMENT_OF[key]: value for key, value in info.items() if key in ARGUMENT_OF},
            **(_settings(conf) if conf else {}),
        },
        told={"": {**info, **arguments}},
        gpu_processes=_processes(sorted(folder.glob("*.gpu"))),
        seconds_since_step=max(0.0, now - changed) if runs else None,
        vocabulary=next((one.vocabulary for one in heads if one.vocabulary is not None), None),
        signs=[
            *(_slow(runs[-1], {**info, **arguments}, heads, logs) if runs else ()),
            *(one for file in sorted(folder.glob("*.gpu.jsonl")) for one in _signs(file)),
        ],
    )


@dataclass(frozen=True)
class _Head:
    """What a NODE's log says at its head."""

    node: str
    info: Mapping[str, str] = field(default_factory=dict)
    vocabulary: int | None = None


def _head_of(log: Sequence[Path]) -> _Head:
    """Return what is at the head of a log, given its pieces; nothing of one that cannot be read."""
    try:
        text = head(log[0])
    except OSError:
        return _Head(log[-1].stem)
    return _Head(log[-1].stem, info_of(text), vocabulary_of(text))


def _slow(
    run: Mapping[str, Any], told: Mapping[str, str], heads: Sequence[_Head], logs: Sequence[Sequence[Path]]
) -> list[Sign]:
    """Return the ranks that compute longer than their peers, where the timers of all are told.

    Args:
        run, told: The run, and what it says of itself.
        heads: Of the first logs.
        logs: All, each in its pieces.
    """
    compute = {int(rank): float(time) for rank, time in run["compute_ms"].items()}
    layout = rank_timers.layout(told)
    if not compute or layout is None:
        return []
    names = {}
    for one in itertools.chain(heads, map(_head_of, logs[len(heads) :])):
        number = one.info.get("NODE_RANK", "")
        if number.isdecimal():
            names[int(number)] = one.node
    count = told.get("NNODES", "")
    each = len(compute) // int(count) if count.isdecimal() and int(count) else 0
    nodes = {rank: names[rank // each] for rank in compute if rank // each in names} if each else {}
    return rank_timers.slow(compute, *layout, nodes)


def _findings(file: Path) -> list[Finding]:
    """Return what is wrong in the errors of a node, ``NODE.err``."""
    lines = itertools.islice(text_lines(file), _MOST_LINES)
    return [replace(one, node=file.stem) for one in findings(lines)]


def _signs(file: Path) -> list[Sign]:
    """Return what is wrong with a node, from the end of what its agent measured, ``NODE.gpu.jsonl``."""
    samples = []
    for line in tail(file, _SAMPLES, most=_MOST_BYTES):
        # The first of the last bytes may be in the middle of a line, and the last line may have been cut.
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            sample = Sample.of(json.loads(line))
            gpus = tuple(one for one in sample.devices if not one.name.endswith(_PROCESSORS))
            samples.append(replace(sample, devices=gpus))
    node = file.name.removesuffix(".gpu.jsonl")
    return of_node(node, samples, ranks=sorted(samples[-1].ranks) if samples else ())


def _settings(conf: Path) -> dict[str, str]:
    try:
        return dict(_SETTING.findall(conf.read_text(encoding="utf-8", errors="replace")))
    except OSError as error:
        raise NothingToRead(f"{conf} cannot be read: {error.strerror}.") from error


def _processes(files: Sequence[Path]) -> dict[str, int | None]:
    """Return on how many GPUs of each node a process is; None of one that tells no GPU, nothing without any.

    Of a GPU that names no process, the memory counts; see ``Device.is_in_use``.
    """
    found: dict[str, int | None] = {}
    for file in files:
        lines = tail(file, _DEVICES)
        devices = [match.groups() for line in lines if (match := _DEVICE.match(line))]
        if devices:
            found[file.stem] = sum(
                bool(names.strip()) or Device(0, "", used=int(used) * _MB, total=int(total) * _MB).is_in_use
                for used, total, names in devices
            )
        elif not any(_PROCESSORS in line for line in lines):
            found[file.stem] = None
    return found
