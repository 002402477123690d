# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's files → the data of a report, as plain data that nodes can send.

Each node of a job may have only its own logs; ``merged`` joins the parts of all nodes.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import os.path
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdm_log.observe import STREAM, check_state, node_of_log, observe, of_json, read_json, to_json
from rdm_log.observe import merged as joined_observations
from rdm_log.parallel import of_each
from rdm_log.report import configuration as settings
from rdm_log.report.devices import COLUMNS, history, node_of
from rdm_log.sections import job_info
from rdm_log.summary import NothingToRead, log_files, newest_run, summarise
from rdm_log.timeline import Span, Timeline, laid_out, read_timers, read_traces, shares, trace_files
from rdm_log.verdict import Observed, Verdict, evaluate
from rdm_log.wording import listed

_VERSION = 2
_MARK = "rdm_report"
PARTS = "*.report.json"
"""Files with the parts of nodes, as `rdm-trainer job report` prints them."""

_GPU_MOMENTS = 100_000
"""The most moments of GPUs, of all nodes together…"""
_LEAST_MOMENTS = 50
"""… but at least this many for each node."""
_ROWS = 64
"""The most ranks with a row in the timeline."""
_NETWORK = {"fabric": "rtt_us", "rdma": "bandwidth_gbit", "plan": "nodes"}
"""The sections about the network, and a key that each must have to be used."""


@dataclass(frozen=True)
class Job:
    """The data of a report about one job. All of it is plain data.

    Attributes:
        name: Its name.
        source: The path that was read.
        failures: What ended it or made it restart: ``node``, ``rank``, ``reason``.
        runs: Its runs, as in ``Summary.runs``, with their series.
        restarts: How often it restarted.
        devices: The result of ``devices.history``, by node.
        configuration: Its configuration, flat and without secrets.
        nodes: ``name``, ``address`` and ``slots`` of each node, by rank.
        fabric: Round-trip times between nodes, as `rdm-provision verify --json` measured them.
        rdma: RDMA bandwidths between nodes, from the same measurement.
        plan: The addresses of the cluster's nodes, as `rdm-provision up --json` planned them.
        timeline: What its ranks did when; see ``_timeline``.
        seen: What is known of it besides its runs, for the verdict.
        notes: Notes for the reader on how files were read.
        missing: The nodes that could not be reached: none of their files were read.
    """

    name: str
    source: str = ""
    failures: tuple[Mapping[str, Any], ...] = ()
    runs: tuple[Mapping[str, Any], ...] = ()
    restarts: int = 0
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[Mapping[str, Any], ...] = ()
    fabric: Mapping[str, Any] | None = None
    rdma: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    timeline: Mapping[str, Any] | None = None
    seen: Observed = field(default_factory=Observed)
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        # Not asdict, which would copy a hundred thousand points.
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        own["seen"] = to_json(self.seen)
        return {_MARK: _VERSION, **{key: list(v) if isinstance(v, tuple) else v for key, v in own.items()}}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Job:
        """Return the job in JSON data, ignoring what a newer program has added."""
        known = {one.name for one in dataclasses.fields(cls)}
        given: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in data.items() if key in known
        }
        return cls(**{**given, "seen": of_json(given["seen"])})

    @property
    def run(self) -> Mapping[str, Any] | None:
        """The newest run that has steps."""
        return newest_run(self.runs)

    def verdict(self) -> Verdict:
        """Return the job's verdict."""
        found = evaluate(dataclasses.replace(self.seen, runs=self.runs))
        if not self.missing:
            return found
        first, *others = found.evidence or (found.reason,)
        return dataclasses.replace(found, evidence=(first, _without(self.missing), *others))


def collect(path: Path, *, name: str = "", node: str = "", state: str = "", conf: Path | None = None) -> Job:
    """Read the files of a job.

    Args:
        path: A job's directory, one with ``NODE.out``, ``NODE.err`` and ``NODE.gpu``, one log, or a directory
            with ``PARTS``, one from each node.
        name: The job's name; by default that of the directory or file.
        node: Read only this node's files; by default all nodes'.
        state: As for ``observe``; ignored for ``PARTS``, which have it.
        conf: As for ``observe``; ignored for ``PARTS``, too.

    Raises:
        NothingToRead: There is no training in the files, the state is not a known word, or ``conf`` cannot
            be read.
    """
    check_state(state)
    # Unlike Path.is_dir, it does not raise if the parent directory is not searchable.
    if os.path.isdir(path) and (parts := sorted(path.glob(PARTS))):  # noqa: PTH112
        whole_job = merged([_kept(part) for part in parts])
        known = {
            key: getattr(whole_job, key) or found for key, found in _network(path / "network.json").items()
        }
        missing = tuple(map(str, read_json(path / "missing.json").get("nodes") or ()))
        return dataclasses.replace(
            whole_job, name=name or path.resolve().name, source="", missing=missing, **known
        )
    outputs = [file for file in log_files(path) if not node or node_of_log(file) == node]
    folder = outputs[0].parent if outputs else path / "logs"
    whole = path.is_dir()
    summary = summarise(outputs, series=True, needs_steps=not whole)
    found = list(summary.runs)
    kept = read_json(path / "state.json") if whole else {}
    devices = _devices(folder, node) if whole else {}
    seen = observe(path, now=time.time(), node=node, runs=found, state=state, conf=conf)
    logged = next(iter(seen.reported.values()), {})
    timeline = _timeline(path if whole else None, outputs, found, logged, node)
    if seen.is_unknown and not (devices or timeline or kept):
        summarise(outputs)  # raises an error that names what is missing
    written = settings.read(path / "resolved.yaml") if whole else {}
    arguments = next((dict(run["arguments"]) for run in reversed(found) if run["arguments"]), {})
    request = read_json(path / "job.json") if whole else {}
    for run in found:
        # The configuration has them, without secrets.
        run["arguments"] = {}
    return Job(
        name=name or (path.resolve().name if whole else path.name),
        source=str(path),
        failures=tuple(one for one in _list(kept.get("failures")) if isinstance(one, dict)),
        runs=tuple(found),
        restarts=max(summary.restarts, _number(kept.get("restarts"))),
        devices=devices,
        configuration=settings.without_secrets(written or {**arguments, **job_info(outputs)}),
        nodes=tuple(one for one in _list(request.get("nodes")) if isinstance(one, dict)),
        **(_network(path / "network.json") if whole else {}),
        timeline=timeline,
        seen=dataclasses.replace(seen, runs=()),
        notes=tuple(_notes(devices)),
    )


def _list(value: Any) -> list[Any]:
    """Return a value from a file of a job's directory if it is a list, or else an empty one."""
    return value if isinstance(value, list) else []


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def merged(parts: Sequence[Job]) -> Job:
    """Return one job from the parts of its nodes.

    The steps come from the node with the most of them, memory and milestones from all nodes.
    """
    first = max(parts, key=lambda job: sum(run["lines"] for run in job.runs))
    runs = [dict(run) for run in first.runs]
    for part in parts:
        if part is first:
            continue
        for run, other in zip(reversed(runs), reversed(part.runs), strict=False):
            run["memory_mib"] = {**other["memory_mib"], **run["memory_mib"]}
            run["milestones"] = {**other["milestones"], **run["milestones"]}
            run["checkpoints"] = run["checkpoints"] or other["checkpoints"]
    return dataclasses.replace(
        first,
        failures=max((part.failures for part in parts), key=len),
        runs=tuple(runs),
        restarts=max(part.restarts for part in parts),
        devices={name: one for part in parts for name, one in part.devices.items()},
        configuration=next((part.configuration for part in parts if part.configuration), {}),
        nodes=next((part.nodes for part in parts if part.nodes), ()),
        fabric=next((part.fabric for part in parts if part.fabric), None),
        rdma=next((part.rdma for part in parts if part.rdma), None),
        plan=next((part.plan for part in parts if part.plan), None),
        timeline=_joined_timeline([part.timeline for part in parts if part.timeline]),
        seen=joined_observations([part.seen for part in parts]),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _without(missing: Sequence[str]) -> str:
    whose = "its" if len(missing) == 1 else "their"
    return f"{listed(missing)} could not be queried: {whose} logs are not in this."


def _kept(path: Path) -> Job:
    found = read_json(path)
    found = found.get("report") or found
    if found.get(_MARK) != _VERSION:
        raise NothingToRead(f"{path} is not what `rdm-trainer job report` of this version prints.")
    return Job.of(found)


def _network(path: Path) -> dict[str, Any]:
    """Return the sections about the network, as `rdm-provision` prints them with --json; None if missing."""
    content = read_json(path)
    return {
        key: one if isinstance(one := content.get(key), dict) and isinstance(one.get(word), dict) else None
        for key, word in _NETWORK.items()
    }


def _devices(folder: Path, node: str) -> dict[str, dict[str, Any]]:
    """Return the GPU history of each node, from its JSON records or else from gpustat's lines."""
    records: dict[str, list[Path]] = {}
    for ending in (STREAM, ".gpu"):
        for file in sorted(folder.glob(f"{glob.escape(node) or '*'}{ending}")):
            records.setdefault(node_of(file), []).append(file)
    columns = max(_LEAST_MOMENTS, min(COLUMNS, _GPU_MOMENTS // max(1, len(records))))
    names = sorted(records)
    histories = of_each(functools.partial(_history, columns), [records[name] for name in names])
    return {name: one for name, one in zip(names, histories, strict=True) if one}


def _history(columns: int, files: Sequence[Path]) -> dict[str, Any]:
    return next(filter(None, (history(file, columns) for file in files)), {})


def _notes(devices: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if any(one["sampled"] for one in devices.values()):
        yield "The GPU records are long; moments that lie evenly in them are shown."


def _timeline(
    directory: Path | None,
    outputs: Sequence[Path],
    runs: Sequence[Mapping[str, Any]],
    logged: Mapping[str, str],
    node: str,
) -> dict[str, Any] | None:
    """Return what ranks did when, as plain data: spans of one rank of each stage, shares of all ranks.

    They come from step traces, or else from the timers of all ranks in a log.
    """
    found = read_traces(trace_files(directory), node) if directory else Timeline()
    if not found.spans and any(timer["slowest_rank"] is not None for run in runs for timer in run["timers"]):
        timings = (read_timers(file) for file in outputs)
        found = max(timings, key=lambda one: (sum(map(len, one.spans.values())), len(one.times)))
        found = laid_out(found, logged)
    if not found.spans and not found.times:
        return None
    chosen = _rows(found)
    return {
        "source": found.source,
        "uncertainty_us": found.uncertainty,
        "is_pipeline": found.is_pipeline,
        "stages": {str(rank): stage for rank, stage in found.stages.items()},
        "nodes": {str(rank): node for rank, node in found.nodes.items()},
        "shares_ms": {str(rank): timings for rank, timings in shares(found).items()},
        "spans": {str(rank): [list(span) for span in found.spans[rank]] for rank in chosen},
    }


def _rows(timeline: Timeline) -> list[int]:
    """Return the ranks to show: the first of each stage, or the first ranks if no stages are known."""
    if timeline.is_pipeline and timeline.stages:
        by_stage: dict[int, int] = {}
        for rank in sorted(timeline.spans):
            by_stage.setdefault(timeline.stages.get(rank, 0), rank)
        return [by_stage[stage] for stage in sorted(by_stage)][:_ROWS]
    return sorted(timeline.spans)[:_ROWS]


def timeline_of(data: Mapping[str, Any]) -> Timeline:
    """Return the timeline from ``_timeline``'s plain data, with one rank of each stage."""
    found = Timeline(
        {int(rank): [Span(*span) for span in spans] for rank, spans in data["spans"].items()},
        {int(rank): stage for rank, stage in data["stages"].items()},
        {int(rank): node for rank, node in data["nodes"].items()},
        data["uncertainty_us"],
        data["source"],
        data["is_pipeline"],
    )
    return dataclasses.replace(found, spans={rank: found.spans[rank] for rank in _rows(found)})


def _joined_timeline(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not parts:
        return None
    joined = dict(parts[0])
    for key in ("stages", "nodes", "shares_ms", "spans"):
        joined[key] = {rank: value for part in parts for rank, value in part[key].items()}
    joined["is_pipeline"] = any(part["is_pipeline"] for part in parts)
    uncertainties = [part["uncertainty_us"] for part in parts if part["uncertainty_us"] is not None]
    joined["uncertainty_us"] = max(uncertainties) if uncertainties else None
    return joined
