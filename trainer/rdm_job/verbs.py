# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node is asked about jobs: start, state, stop, logs, list. Each returns its answer as plain data."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import time
from typing import Any

from rdm_job import processes
from rdm_job.check import read_config, with_slots
from rdm_job.directory import NODE_VARIABLE, JobDirectory, jobs_root
from rdm_job.health import final
from rdm_job.part import Part
from rdm_job.protocol import Request, State
from rdm_log.sections import sections as sections_of
from rdm_log.tails import tail
from rdm_log.wanted import Wanted
from rdm_trainer import config as configuration
from rdm_trainer.errors import TrainerError

__all__ = ["jobs", "logs", "revive", "sections", "start", "state", "stop"]

_START_S = 30
_KILL_S = 20.0
"""How long ending processes may take, in seconds."""
_MOST_TEXT = 1024 * 1024


def start(request: Request) -> dict[str, Any]:
    """Write the job's directory and start its agent, which outlives this process.

    Raises:
        TrainerError: The configuration is wrong, or the agent did not come up.
    """
    job = JobDirectory(jobs_root() / request.name, request.node)
    if job.exists and job.has_agent:
        return {"directory": str(job.path), "started": False}
    config = read_config(request)
    overrides = request.overrides
    if job.exists and not request.config:
        overrides = (*job.request().overrides, *overrides)
    request = with_slots(dataclasses.replace(request, overrides=overrides), config)
    world = sum(node.slots for node in request.nodes)
    if job.exists:
        # What an agent that was killed has left would be in the way.
        processes.end_all(job.request().job_id)
    job.make(request)
    if request.config:
        job.write_config(request.config)
    job.write_resolved(configuration.dump(configuration.resolve(config, world)))
    job.forget_stop()
    job.forget_ranks()
    _start_agent(job, request.node)
    return {"directory": str(job.path), "started": True}


def revive() -> dict[str, Any]:
    """Start the agents of jobs that were at work when this container, or the node, was restarted.

    A job without restarts has ended with its agent. One that has none left, or whose other agents have given
    up, ends; see ``agent``.
    """
    found = []
    for job in JobDirectory.all():
        known = job.read_state()
        if known.has_ended or not known.started or job.has_agent:
            continue
        if not Part(job).config.launcher.max_restarts:
            continue
        job.forget_ranks()
        _start_agent(job, job.node)
        found.append(job.path.name)
    return {"revived": found}


def _start_agent(job: JobDirectory, node: str) -> None:
    """Start a job's agent, which outlives this process, and return when it is at work.

    Raises:
        TrainerError: It did not come up.
    """
    before = job.version
    with (job.path / ".agent.log").open("ab") as log:
        agent = subprocess.Popen(  # our own program
            [sys.executable, "-m", "rdm_job.agent", str(job.path)],
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
            said = tail(job.path / ".agent.log", 1) or ["it wrote nothing"]
            raise TrainerError(f"The job's agent did not start: {said[0]}.")
        time.sleep(0.05)


def state(name: str, wait: float = 0.0) -> dict[str, Any]:
    """Return how a job is, at once or when there is news."""
    job = JobDirectory.named(name)
    if wait and not job.read_state().has_ended:
        job.wait_for_news(wait)
    return {"job": _state(job).to_json()}


def jobs() -> dict[str, Any]:
    """Return all jobs of this node, without their loss curves and devices."""
    found = []
    for job in JobDirectory.all():
        known = _state(job).to_json()
        known["progress"].pop("losses", None)
        known["gpu"] = {}
        found.append(known)
    return {"jobs": found}


def stop(name: str, *, now: bool = False, timeout: float = 330.0) -> dict[str, Any]:
    """Stop a job: its processes on this node, after a checkpoint unless NOW.

    Args:
        name: The job.
        now: At once.
        timeout: Seconds until this has ended the processes in any case.
    """
    job = JobDirectory.named(name)
    had_ended = _state(job).has_ended
    if job.has_agent:
        job.ask_to_stop(0.0 if now else max(timeout - _KILL_S, timeout / 2))
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
    offset: int | None = None,
    wait: float = 0.0,
    grep: str = "",
    rank: int | None = None,
) -> dict[str, Any]:
    """Return a part of a log.

    Args:
        name: The job.
        stream: out, err or gpu.
        lines: How many of the last lines; 0 for all.
        offset: Return what is beyond this byte instead.
        wait: With OFFSET: seconds to wait until there is more.
        grep: Only lines in which this regular expression is found.
        rank: Only lines before which this rank's number stands, as torch and launchers write it.

    Raises:
        TrainerError: GREP is no regular expression.
    """
    job = JobDirectory.named(name)
    try:
        wanted = Wanted(grep, rank)
    except re.error as error:
        raise TrainerError(f"{grep!r} is no regular expression: {error}.") from None
    path = job.log(job.request().node, stream)
    if offset is None:
        size = path.stat().st_size if path.exists() else 0
        if wanted.is_all:
            shown = tail(path, lines or sys.maxsize, most=_MOST_TEXT)
        else:
            shown = wanted.last(path, lines or sys.maxsize, most=_MOST_TEXT)
        text = "".join(f"{line}\n" for line in shown)
        return {"text": text, "offset": size, "ended": _state(job).has_ended}
    deadline = time.monotonic() + wait
    while True:
        ended = _state(job).has_ended
        text, end = _from(job, stream, offset)
        text = wanted.of(text)
        if text or ended or time.monotonic() >= deadline:
            return {"text": text, "offset": end, "ended": ended}
        offset = end
        time.sleep(0.2)


def sections(name: str) -> dict[str, Any]:
    """Return what this node's logs of a job say, section by section; see ``rdm_log.sections``.

    Args:
        name: The job.
    """
    job = JobDirectory.named(name)
    request, config = job.request(), configuration.load(job.resolved)
    parallel, batch, model = config.parallel, config.optimisation, config.model
    world = sum(node.slots for node in request.nodes)
    # Under the names that the document's scripts write.
    info = {
        "NODE_RANK": [node.name for node in request.nodes].index(job.node),
        "MASTER_ADDR": request.master.address,
        "NNODES": len(request.nodes),
        "WORLD_SIZE": world,
        "GLOBAL_BATCH_SIZE": batch.global_batch_size,
        "MICRO_BATCH_SIZE": batch.micro_batch_size,
        "TENSOR_MP_SIZE": parallel.tensor,
        "DP_SIZE": parallel.data or world // (parallel.tensor * parallel.pipeline),
        "PIPELINE_MP_SIZE": parallel.pipeline,
        "PARTITION": parallel.partition,
        "MODEL": config.name,
        "HIDDEN_SIZE": model.hidden_size,
        "NUM_LAYERS": model.layers,
    }
    found = sections_of(job.logs, name, info={key: str(value) for key, value in info.items()}, node=job.node)
    return {"sections": [section.to_json() for section in found]}


def _from(job: JobDirectory, stream: str, offset: int) -> tuple[str, int]:
    """Return the whole lines of a log that begin at a byte, and where the next one does."""
    path = job.log(job.request().node, stream)
    try:
        with path.open("rb") as file:
            # Records that were thinned are fewer than they were.
            offset = min(offset, file.seek(0, os.SEEK_END))
            file.seek(offset)
            block = file.read(_MOST_TEXT)
    except OSError:
        return "", offset
    block = block[: block.rfind(b"\n") + 1]
    return block.decode("utf-8", "replace"), offset + len(block)


def _state(job: JobDirectory) -> State:
    """Return how a job is; one whose agent is gone has failed."""
    known = job.read_state()
    if known.has_ended or job.has_agent:
        return known
    # The agent may have ended the job between the two looks.
    known = job.read_state()
    if known.has_ended:
        return known
    reason = f"Its agent on {job.request().node} is gone: the container or the node was restarted."
    ended = dataclasses.replace(known, state="failed", reason=reason, ended=time.time())
    ended = dataclasses.replace(ended, verdict=final(ended))
    job.write_state(ended)
    return ended
