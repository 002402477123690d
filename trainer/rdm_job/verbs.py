# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs of ``rdm-trainer job`` on a node: start, state, stop, logs and more. Each returns plain data."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_core.heartbeat import NODE_VARIABLE
from rdm_job import outputs, processes
from rdm_job.agent import GOES_ON
from rdm_job.directory import JobDirectory, jobs_root
from rdm_job.health import of_state
from rdm_job.info import job_info
from rdm_job.part import Part
from rdm_job.protocol import Request, State
from rdm_job.requested import read_config, with_slots
from rdm_job.rotation import end_of, lines_from
from rdm_job.slurm import verbs as slurm
from rdm_job.slurm.script import OUTPUT
from rdm_log.report.job import collect
from rdm_log.sections import sections as sections_of
from rdm_log.summary import NothingToRead
from rdm_log.tails import tail
from rdm_log.wanted import Wanted

_START_S = 60
"""How long an agent may take to start, in seconds; one that fails to start exits at once."""
_KILL_S = 20.0
"""How long ending processes may take, in seconds."""
_MOST_TEXT = 1024 * 1024
_ABOVE = 16 * 1024
"""How many bytes above an offset are read, to find which rank's traceback continues there."""


def start(request: Request) -> dict[str, Any]:
    """Write the job's directory and start its agent, which outlives this process.

    Raises:
        TrainerError: The configuration is wrong, or the agent did not come up.
    """
    job = JobDirectory(jobs_root() / request.name, request.node)
    if job.exists and not job.slurm.is_file() and job.has_agent:
        return {"directory": str(job.path), "started": False, "job": _state(job).to_json()}
    config = read_config(request)
    overrides = request.overrides
    if job.exists and not request.config:
        overrides = (*job.stored().overrides, *overrides)
    request = dataclasses.replace(request, overrides=overrides)
    if config.launcher.kind == "slurm":
        return slurm.start(job, request, config)
    job.slurm.unlink(missing_ok=True)
    request = with_slots(request, config)
    world = request.world_size
    if job.exists:
        # End the processes that a killed agent has left.
        processes.end_all(job.request().job_id)
    job.make(request)
    if request.config:
        job.write_config(request.config)
    resolved = config.resolved(world)
    job.write_resolved(configuration.dump(resolved))
    outputs.link(job, resolved, world, time.time())
    job.forget_stop()
    _start_agent(job, request.node)
    return {"directory": str(job.path), "started": True, "job": _state(job).to_json()}


def revive() -> dict[str, Any]:
    """Start the agents of jobs that were running when this container, or the node, was restarted.

    A job configured without restarts has failed with its agent. A job that has no restarts left, or whose
    other agents have given up, is ended by its agent; see ``agent``.
    """
    found = []
    for job in JobDirectory.all():
        if job.slurm.is_file():
            continue
        known = job.read_state()
        if known.has_ended or not known.started or job.has_agent:
            continue
        if not Part(job).config.launcher.max_restarts:
            continue
        _start_agent(job, job.node, GOES_ON)
        found.append(job.path.name)
    return {"revived": found}


def _start_agent(job: JobDirectory, node: str, *how: str) -> None:
    """Start a job's agent, which outlives this process, and return when it has written its state.

    Args:
        job: The job.
        node: This node.
        how: ``GOES_ON`` to continue from its predecessor's state.

    Raises:
        TrainerError: It did not start.
    """
    before = job.version
    with (job.path / ".agent.log").open("ab") as log:
        agent = subprocess.Popen(  # our own program
            [sys.executable, "-m", "rdm_job.agent", str(job.path), *how],
            cwd=job.path,
            env={
                **{key: value for key, value in os.environ.items() if key != processes.JOB_VARIABLE},
                NODE_VARIABLE: node,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_S
    while job.version == before:
        if agent.poll() is not None or time.monotonic() > deadline:
            # Kill an agent that is only late: the job is reported as not started.
            agent.kill()
            agent.wait()
            last_line = tail(job.path / ".agent.log", 1) or ["it wrote nothing"]
            raise TrainerError(f"The job's agent did not start: {last_line[0]}.")
        time.sleep(0.05)


def state(name: str, wait: float = 0.0) -> dict[str, Any]:
    """Return the state of a job, at once or when it changes within ``wait`` seconds."""
    job = JobDirectory.named(name)
    if job.slurm.is_file():
        return {"job": slurm.state(job, wait).to_json()}
    if wait and not job.read_state().has_ended:
        job.wait_for_change(wait)
    return {"job": _state(job).to_json()}


def jobs() -> dict[str, Any]:
    """Return all jobs of this node, without their loss curves and devices."""
    known = JobDirectory.all()
    submitted = [job for job in known if job.slurm.is_file()]
    found = [_state(job) for job in known if job not in submitted]
    found += slurm.states(submitted) if submitted else []
    states = [one.to_json() for one in sorted(found, key=lambda one: one.job)]
    for one in states:
        one["progress"].pop("losses", None)
        one["gpu"] = {}
    return {"jobs": states}


def stop(name: str, *, now: bool = False, timeout: float = 330.0) -> dict[str, Any]:
    """Stop a job: its processes on this node.

    Args:
        name: The job.
        now: Stop at once, without a checkpoint.
        timeout: Seconds after which the processes are killed.
    """
    job = JobDirectory.named(name)
    if job.slurm.is_file():
        stopped, known = slurm.stop(job, now=now, timeout=timeout)
        return {"stopped": stopped, "job": known.to_json()}
    had_ended = _state(job).has_ended
    if job.has_agent:
        job.request_stop(0.0 if now else max(timeout - _KILL_S, timeout / 2))
        deadline = time.monotonic() + timeout
        while job.has_agent and time.monotonic() < deadline:
            time.sleep(0.2)
    left = processes.end_all(job.request().job_id)
    return {"stopped": left or not had_ended, "job": _state(job).to_json()}


def logs(
    name: str,
    *,
    stream: str = "out",
    lines: int = 20,
    offset: str | None = None,
    wait: float = 0.0,
    grep: str = "",
    rank: int | None = None,
) -> dict[str, Any]:
    """Return a part of this node's log; under Slurm, where all nodes share the directory, of all nodes' logs.

    Args:
        name: The job.
        stream: out, err or gpu.
        lines: How many of the last lines; 0 for all.
        offset: Return the lines from this offset on instead, which an earlier call returned.
        wait: With ``offset``: how many seconds to wait for new lines.
        grep: Only lines that match this regular expression.
        rank: Only lines that this rank wrote, by their marks or because no other rank can have written them.

    Raises:
        TrainerError: The pattern is no regular expression.
    """
    job = JobDirectory.named(name)
    try:
        re.compile(grep)
    except re.error as error:
        raise TrainerError(f"{grep!r} is no regular expression: {error}.") from None
    if job.slurm.is_file():
        return _logs_of_all(job, stream, lines, offset, wait, grep, rank)
    path, wanted = job.log(job.node, stream), _wanted(job, job.node, grep, rank)
    if offset is None:
        text, size = _last(path, lines, wanted)
        answer = {"text": text, "offset": size, "ended": _state(job).has_ended}
        return answer if text else {**answer, **_ranks_instead(job, rank, {job.node: path})}
    deadline, begin = time.monotonic() + wait, _byte(offset)
    _feed_above(path, begin, wanted)
    while True:
        ended = _state(job).has_ended
        text, end = _from(path, begin, wanted)
        if text or ended or time.monotonic() >= deadline:
            return {"text": text, "offset": end, "ended": ended}
        begin = end
        time.sleep(0.2)


def _logs_of_all(
    job: JobDirectory,
    stream: str,
    lines: int,
    offset: str | None,
    wait: float,
    grep: str,
    rank: int | None,
) -> dict[str, Any]:
    """Return the same for all nodes: ``parts`` by node, and one offset for all, as ``n1=120,n2=80``."""
    deadline = time.monotonic() + wait
    while True:
        ended = slurm.state(job).has_ended
        paths = {node.name: job.log(node.name, stream) for node in job.stored().nodes}
        wanted = {node: _wanted(job, node, grep, rank) for node in (*paths, "slurm")}
        if stream == "err":
            paths["slurm"] = job.path / OUTPUT
        if offset is None:
            read = {node: _last(path, lines, wanted[node]) for node, path in paths.items()}
        else:
            given = dict(part.rpartition("=")[::2] for part in offset.split(",") if part)
            offsets = {node: _byte(given.get(node, "0")) for node in paths}
            for node, path in paths.items():
                _feed_above(path, offsets[node], wanted[node])
            read = {node: _from(path, offsets[node], wanted[node]) for node, path in paths.items()}
        parts = {node: text for node, (text, _) in read.items() if text}
        ends = ",".join(f"{node}={end}" for node, (_, end) in read.items())
        if parts or ended or offset is None or time.monotonic() >= deadline:
            answer: dict[str, Any] = {"text": "", "parts": parts, "offset": ends, "ended": ended}
            # The nodes are unknown until the job starts, or starts again. With an offset, only a rank that
            # does not exist is reported: the other check reads all logs whole, which each call would repeat.
            is_none = rank is not None and rank >= job.stored().world_size
            if not parts and job.stored().offer.agent_port and (offset is None or is_none):
                answer.update(_ranks_instead(job, rank, paths))
            return answer
        offset = ends
        time.sleep(1.0)


def _wanted(job: JobDirectory, log: str, grep: str, rank: int | None) -> Wanted:
    """Return the filter for a node's log. The only rank of a node needs no marks."""
    if rank is None:
        return Wanted(grep)
    request = job.stored()
    of_ranks = request.ranks
    its = of_ranks[rank] if rank < len(of_ranks) else None
    names = [node.name for node in of_ranks]
    first = names.index(log) if log in names else 0
    if its is None or its.slots > 1:
        return Wanted(grep, rank, first=first)
    # Ranks write to their own node's log, whatever starts them. A launcher of all nodes writes to that of the
    # master, with the names of other nodes, or with their addresses, like DeepSpeed's.
    others = []
    if log == request.master.name:
        others = [word for node in request.nodes if node is not its for word in (node.name, node.address)]
    return Wanted(
        grep, rank, is_alone=log == its.name, nodes=(its.name, its.address), others=others, first=first
    )


def _ranks_instead(job: JobDirectory, rank: int | None, paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return why logs have no line of a rank; other filters do not count.

    Returns:
        ``ranks``, the number of the job's ranks, if the rank is not one of them. ``notice``, a sentence, if
        the rank writes to one of the logs but nothing there identifies its lines. Empty if there are lines of
        the rank, as after a restart with fewer ranks.
    """
    of_ranks = [node.name for node in job.stored().ranks]
    if rank is None or any(_wanted(job, log, "", rank).is_in(path) for log, path in paths.items()):
        return {}
    if rank >= len(of_ranks):
        return {"ranks": len(of_ranks)}
    writes = of_ranks[rank]
    if writes not in paths or not end_of(paths[writes]):
        return {}
    return {
        "notice": f"No line on {writes} says that rank {rank} wrote it. With logging.mark_ranks each line of "
        f"the next job does; or the program begins its lines as [rank{rank}]: does, by the variable RANK."
    }


def sections(name: str) -> dict[str, Any]:
    """Return the sections of a job's logs on this node; see ``rdm_log.sections``."""
    job = JobDirectory.named(name)
    if job.slurm.is_file():
        # The directory holds all nodes' logs.
        job = JobDirectory.of_master(job.path)
    info = job_info(job.request(), configuration.load_job(job.resolved))
    found = sections_of(job.logs, name, info=info, node="" if job.slurm.is_file() else job.node)
    return {"sections": [section.to_json() for section in found]}


def report(name: str) -> dict[str, Any]:
    """Return a report's data from this node's files of a job, so that the logs themselves stay here."""
    job = JobDirectory.named(name)
    try:
        return {"report": collect(job.path, name=name, node=job.node).to_json()}
    except NothingToRead:
        # The job has written nothing yet.
        return {"report": None}


def _last(path: Path, lines: int, wanted: Wanted) -> tuple[str, int]:
    """Return the last wanted lines of a log, and the offset of its end."""
    size = end_of(path)
    last = tail if wanted.is_all else wanted.last
    shown = last(path, lines or sys.maxsize, most=_MOST_TEXT)
    return "".join(f"{line}\n" for line in shown), size


def _from(path: Path, offset: int, wanted: Wanted) -> tuple[str, int]:
    """Return the wanted whole lines of a log from an offset on, and the offset of the next line."""
    try:
        block, end = lines_from(path, offset, _MOST_TEXT)
    except OSError:
        return "", offset
    return wanted.of(block.decode("utf-8", "replace")), end


def _feed_above(path: Path, offset: int, wanted: Wanted) -> None:
    """Feed the filter the lines above an offset, so that it knows which rank's traceback continues there."""
    begin = max(0, offset - _ABOVE)
    if not wanted.is_all and begin < offset:
        with contextlib.suppress(OSError):
            block, end = lines_from(path, begin, offset - begin)
            # If the log was rotated meanwhile, the lines read are not those above the offset.
            if end <= offset:
                wanted.of(block.decode("utf-8", "replace"))


def _byte(text: str) -> int:
    if not text.isdecimal():
        raise TrainerError(f"{text!r} is no place in a log; give what an earlier answer said.")
    return int(text)


def _state(job: JobDirectory) -> State:
    """Return the state of a job; a running job whose agent is gone has failed."""
    known = job.read_state()
    if known.has_ended or job.has_agent:
        return known
    # The agent may have ended the job since the state was read.
    known = job.read_state()
    if known.has_ended:
        return known
    reason = f"Its agent on {job.request().node} is gone: the container or the node was restarted."
    ended = dataclasses.replace(known, state="failed", reason=reason, ended=time.time())
    ended = dataclasses.replace(ended, verdict=of_state(ended))
    job.write_state(ended)
    return ended
