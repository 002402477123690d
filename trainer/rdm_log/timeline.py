# SPDX-License-Identifier: GPL-3.0-or-later
"""What each rank did when: our step traces and the timers of FASOP's Megatron-LM → spans on one clock.

``logging.trace_steps`` writes step traces, one JSON file for each rank, ``trace/rank-NNNNN.json``. Timers
come from ``--timing-log-option all``. Forks also log when each timer began and ended: these and step traces
give the plot of a step, the bubble's share, and a trace in Chrome's format. Megatron-LM itself logs only
durations, which show how a rank spends a step.

Source of the format: "Trace Event Format", the complete events (``"ph": "X"``), as Perfetto reads it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rdm_log.heads import head, info_of, info_of_job
from rdm_log.rank_timers import layout
from rdm_log.scan import TIMERS, RankTimers, pieces, regular, whole_lines, with_pieces
from rdm_log.summary import check_readable, newest_run, summarise

KINDS = ("forward", "backward", "send", "receive", "reduce", "optimiser", "load", "collective", "other")
"""The kinds of spans. A ``collective`` lies within another span, such as a forward pass."""
TRACES = "trace"
"""The directory of the traces, in the job's directory."""
VERSION = 1
BLOCK = 512 * 1024
"""Bytes that are searched at once."""

_COMPUTE = ("forward", "backward")
_LONGEST_TAG = 4096
_NUMBER = re.compile(rb"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# Megatron's timers → kinds; the first match counts. Timers of kind None contain other timers.
_TIMER_KINDS = (
    (re.compile(r"forward-backward|interval|optimizer-|batch-generator|-setup"), None),
    (re.compile(r"recv"), "receive"),
    (re.compile(r"send"), "send"),
    (re.compile(r"reduce|gather"), "reduce"),
    (re.compile(r"forward"), "forward"),
    (re.compile(r"backward"), "backward"),
    (re.compile(r"optimizer"), "optimiser"),
)


class Span(NamedTuple):
    """Something that a rank did.

    Attributes:
        begin: In microseconds, on a clock that all ranks share.
        end: Likewise.
        kind: One of ``KINDS``.
        name: The program's name for it.
        step: The step; 0 if unknown.
        micro_batch: The micro-batch within the step; -1 for none.
    """

    kind: str
    name: str
    begin: float
    end: float
    step: int = 0
    micro_batch: int = -1


@dataclass
class Timeline:
    """Spans by rank.

    Attributes:
        spans: By rank, ordered by start.
        stages: The pipeline stage of each rank, where it is known.
        nodes: The node of each rank, where it is known.
        uncertainty: How much the clocks of two nodes may differ, in microseconds; None if not measured.
        source: ``trace`` or ``timers``.
        is_pipeline: The model is known to be split into stages, so there can be a bubble.
        times: By rank, milliseconds per step by kind, if only durations are known.
    """

    spans: dict[int, list[Span]] = field(default_factory=dict)
    stages: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    uncertainty: float | None = None
    source: str = "trace"
    is_pipeline: bool = True
    times: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def steps(self) -> list[int]:
        """The steps that have spans."""
        return sorted({span.step for spans in self.spans.values() for span in spans})

    def of_step(self, step: int) -> Timeline:
        """Return the part for one step."""
        kept = {rank: [span for span in spans if span.step == step] for rank, spans in self.spans.items()}
        return dataclasses.replace(
            self, spans={rank: spans for rank, spans in kept.items() if spans}, times={}
        )


def trace_files(directory: Path) -> list[Path]:
    """Return the step traces in a job's directory, by rank."""
    return sorted((directory / TRACES).glob("rank-*.json"))


def read_traces(files: Sequence[Path], node: str = "") -> Timeline:
    """Return the timeline in step traces, of all nodes or one. A half-written file is left out."""
    found = Timeline(is_pipeline=False)
    uncertainties = []
    for file in files:
        try:
            trace = json.loads(regular(file).read_text())
            rank = int(trace["rank"])
            if node and trace.get("node") != node:
                continue
            spans = [
                Span(str(kind), str(name), float(begin), float(begin) + float(length), int(step), int(batch))
                for kind, name, step, batch, begin, length in trace["spans"]
            ]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        found.spans[rank] = sorted(spans, key=lambda span: span.begin)
        found.stages[rank] = int(trace.get("pipeline_rank", 0))
        found.nodes[rank] = str(trace.get("node", ""))
        found.is_pipeline |= int(trace.get("pipeline", 1)) > 1
        if trace.get("clock_uncertainty_us") is not None:
            uncertainties.append(float(trace["clock_uncertainty_us"]))
    found.uncertainty = max(uncertainties) if uncertainties else None
    return found


def of_paths(paths: Sequence[Path]) -> Timeline:
    """Return the timeline in directories with step traces, or in logs of one job with timers.

    Raises:
        NothingToRead: A log cannot be read.
    """
    for path in paths:
        check_readable(path)
    files = [file for path in paths if path.is_dir() for file in trace_files(path)]
    if files or any(path.is_dir() for path in paths):
        return read_traces(files)
    logs = [path for path in paths if path.is_file()]
    found = max(map(read_timers, logs), key=_size, default=Timeline())
    return laid_out(found, _info_and_arguments(logs)) if found.spans or found.times else found


def _info_and_arguments(logs: Sequence[Path]) -> dict[str, str]:
    """Return the job info and the arguments of the last run with steps, from logs with their pieces."""
    files = [piece for log in logs for piece in with_pieces(log)]
    info = info_of_job([info_of(head(log[0])) for log in pieces(files)])
    run = newest_run(summarise(files, needs_steps=False).runs)
    return {**info, **(run["arguments"] if run else {})}


def laid_out(timeline: Timeline, logged: Mapping[str, str]) -> Timeline:
    """Return a timeline with the stage of each rank, if the pipeline is known and all ranks are there.

    Args:
        timeline: A timeline of timers, which lack the stage.
        logged: Megatron's arguments, or the job info.

    Source: ranks count tensor first, then data, then pipeline (Megatron-LM's ``parallel_state``).
    """
    sizes = layout(logged)
    ranks = sorted(timeline.spans or timeline.times)
    world = logged.get("world_size", logged.get("WORLD_SIZE", str(len(ranks))))
    if sizes is None or sizes[0] < 2 or len(ranks) % sizes[0] or world != str(len(ranks)):
        return timeline
    if not ranks or ranks[-1] != len(ranks) - 1:
        return timeline
    each = len(ranks) // sizes[0]
    return dataclasses.replace(timeline, is_pipeline=True, stages={rank: rank // each for rank in ranks})


def read_timers(file: Path) -> Timeline:
    """Return the timeline of the last timers of all ranks in a log: spans, or times if it has only durations.

    Timers do not show whether there is a pipeline; ``laid_out`` adds that.

    The log is read in blocks, so it may have any size, and may be truncated meanwhile by a rotation.

    Raises:
        OSError: It cannot be read.
    """
    found = Timeline(source="timers", is_pipeline=False)
    with file.open("rb", buffering=0) as opened:
        log = opened.fileno()
        end = os.fstat(log).st_size
        # The last timers may be cut: then those before have more.
        for _ in range(2):
            begin = _heading(log, end)
            if begin < 0:
                break
            candidate = _timers(_blocks(log, begin, end))
            if _size(candidate) > _size(found):
                found = candidate
            end = begin
    return found


def _heading(log: int, end: int) -> int:
    """Return where the line of the last heading of timers before ``end`` begins; -1 if there is none."""
    while end >= len(TIMERS):
        begin = max(0, end - BLOCK)
        # A launcher's tag before a heading may be in the block before.
        first = max(0, begin - _LONGEST_TAG)
        data = os.pread(log, end - first, first).replace(b"\r", b"\n")
        position = data.rfind(TIMERS, begin - first)
        if position >= 0:
            return first + data.rfind(b"\n", 0, position) + 1
        end = begin + len(TIMERS) - 1 if begin else 0
    return -1


def _blocks(log: int, begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes between two positions of a log, or to its end."""
    while begin < end and (data := os.pread(log, min(BLOCK, end - begin), begin)):
        begin += len(data)
        yield data


def _size(timeline: Timeline) -> tuple[int, int]:
    """Return the number of spans and of times in a timeline, to compare it with others."""
    return sum(map(len, timeline.spans.values())), sum(map(len, timeline.times.values()))


def _timers(blocks: Iterable[bytes]) -> Timeline:
    """Return the timeline of timers, from the line of their heading to the first other lines."""
    found = Timeline(source="timers", is_pipeline=False)
    timers = RankTimers(moments=True)
    kind: str | None = None
    name, rank, begins = "", -1, b""
    for lines, _ in whole_lines(blocks):
        if not timers.are_open:
            timers.begin(lines.partition(TIMERS)[0])
        data = b"\n" + lines
        for match in timers.lines(data, 0, len(data)):
            number, milliseconds, named, which, moments = match.groups()
            if named:
                name = named.decode("utf-8", "replace")
                kind = _kind_of(name)
            elif kind is None:
                continue
            elif number:
                rank = int(number)
                times = found.times.setdefault(rank, {})
                times[kind] = times.get(kind, 0.0) + float(milliseconds)
            elif which == b"start":
                begins = moments
            elif rank >= 0:
                each = zip(_microseconds(begins), _microseconds(moments), strict=False)
                found.spans.setdefault(rank, []).extend(Span(kind, name, *both) for both in each)
                begins = b""
        if not timers.are_open:
            break
    if found.spans:
        # Spans have the same durations, and more.
        found.times.clear()
    for own, spans in found.spans.items():
        found.spans[own] = list(_numbered(sorted(spans, key=lambda span: span.begin)))
    return found


def _microseconds(moments: bytes) -> list[float]:
    return [float(number) * 1e6 for number in _NUMBER.findall(moments)]


def _kind_of(timer: str) -> str | None:
    return next((kind for pattern, kind in _TIMER_KINDS if pattern.search(timer)), "other")


def _numbered(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans with their step and micro-batch. A step ends with its optimiser."""
    step = 1
    micro_batches = dict.fromkeys(_COMPUTE, 0)
    for span in spans:
        batch = -1
        if span.kind in micro_batches:
            batch = micro_batches[span.kind]
            micro_batches[span.kind] += 1
        yield span._replace(step=step, micro_batch=batch)
        if span.kind == "optimiser":
            step += 1
            micro_batches = dict.fromkeys(_COMPUTE, 0)


def bubble(timeline: Timeline) -> float | None:
    """Return the bubble's share: the part of all ranks' time in which they run no pass.

    A step counts from the first forward pass on any rank to the last backward pass on any rank. Waiting for a
    neighbour and sending are both in the bubble. None without a pipeline.
    """
    if not timeline.is_pipeline or len(timeline.spans) < 2:
        return None
    available = used = 0.0
    for step in timeline.steps:
        passes = {
            rank: [span for span in spans if span.step == step and span.kind in _COMPUTE]
            for rank, spans in timeline.spans.items()
        }
        every = list(itertools.chain.from_iterable(passes.values()))
        if not every:
            continue
        window = max(span.end for span in every) - min(span.begin for span in every)
        available += window * len(passes)
        used += sum(span.end - span.begin for span in every)
    return max(0.0, 1.0 - used / available) if available else None


def shares(timeline: Timeline) -> dict[int, dict[str, float]]:
    """Return the average milliseconds per step that each rank spent on each kind of span."""
    if not timeline.spans:
        return timeline.times
    steps = max(1, len(timeline.steps))
    averages: dict[int, dict[str, float]] = {}
    for rank, spans in timeline.spans.items():
        sums: dict[str, float] = {}
        for span in spans:
            sums[span.kind] = sums.get(span.kind, 0.0) + span.end - span.begin
        averages[rank] = {kind: sum_ / steps / 1000.0 for kind, sum_ in sums.items()}
    return averages


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline in Chrome's trace format, which Perfetto opens, with a process for each rank.

    Collectives have their own thread, because they lie within other spans.
    """
    begin = min((span.begin for spans in timeline.spans.values() for span in spans), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, spans in sorted(timeline.spans.items()):
        stage = f", stage {timeline.stages[rank]}" if rank in timeline.stages else ""
        node = f" on {timeline.nodes[rank]}" if timeline.nodes.get(rank) else ""
        events.append(_about(rank, "process_name", {"name": f"rank {rank}{stage}{node}"}))
        events.append(_about(rank, "process_sort_index", {"sort_index": rank}))
        events += [_about(rank, "thread_name", {"name": name}, thread) for thread, name in _THREADS.items()]
        for span in spans:
            arguments = {"step": span.step}
            if span.micro_batch >= 0:
                arguments["micro_batch"] = span.micro_batch
            events.append(
                {
                    "name": span.name,
                    "cat": span.kind,
                    "ph": "X",
                    "ts": round(span.begin - begin, 3),
                    "dur": round(span.end - span.begin, 3),
                    "pid": rank,
                    "tid": int(span.kind == "collective"),
                    "args": arguments,
                }
            )
    return {"displayTimeUnit": "ms", "traceEvents": events}


_THREADS = {0: "step", 1: "collectives"}


def _about(rank: int, name: str, arguments: Mapping[str, Any], thread: int = 0) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": rank, "tid": thread, "args": dict(arguments)}
