# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs for Slurm jobs, on the login host. All nodes share the jobs' directories."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rdm_core
from rdm_core import config as configuration
from rdm_core.atomic_file import write_atomically
from rdm_core.config.job import SlurmConfig
from rdm_core.config.slurm import can_run, components, runs_in_image, world_size
from rdm_core.errors import ConfigError, TrainerError
from rdm_job import inspection
from rdm_job.directory import JobDirectory, jobs_root
from rdm_job.health import of_state
from rdm_job.protocol import Request, State
from rdm_job.requested import directory_problems, missing_files
from rdm_job.slurm import commands, container, image, image_paths, limits, policy, rest, view
from rdm_job.slurm.commands import SlurmError
from rdm_job.slurm.rest import Access
from rdm_job.slurm.script import OUTPUT, script
from rdm_job.slurm.states import SlurmJob, the_job
from rdm_log.tails import tail

_FRESH_S = 10.0
"""While the agents' last state is younger than this, in seconds, Slurm is not queried."""
_END_S = 60.0
"""How long Slurm may take to end a job that is cancelled, in seconds."""
_POLL_S, _NEWS_S = 1.0, 0.2
_NO_NUMBER = 0
"""The id of a job that is being submitted."""
_EXITED = re.compile(
    r"srun: error: .*(: task.*: Exited with exit code|generating job report)|srun: Terminating"
)
"""srun's own lines after a task has reported why it ended."""
_SUBMIT_S = 120.0
"""How long a submission may take, in seconds."""


def check(request: Request, config: configuration.JobConfig) -> dict[str, Any]:
    """Check everything that a job needs of Slurm and of this host.

    Returns:
        The reply to ``check``, see ``rdm_job.check``.
    """
    problems = list(directory_problems(request))
    facts: dict[str, Any] = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "rdm_trainer": rdm_core.__version__,
    }
    in_image = runs_in_image(config.launcher.slurm)
    if not in_image:
        facts["torch"] = importlib.metadata.version("torch")
    slots = {part.slots for part in components(config)} if not configuration.slurm.problems(config) else set()
    if slots:
        world = world_size(config)
        problems += configuration.check(config, world, slots.pop() if len(slots) == 1 else None)
        # Files in an image cannot be checked here.
        if not in_image:
            problems += [*missing_files(config), *inspection.problems(configuration.dump(config), (), config)]
    else:
        problems += configuration.check(config)
    slurm = rest.of_config(config.launcher.slurm)
    if not slurm.is_there():
        problems.append(
            f"{request.node} has no sbatch: put the host that jobs are submitted from into login."
        )
    elif config.launcher.slurm.container == "pyxis" and not commands.has_pyxis():
        problems.append(f"srun on {request.node} has no pyxis (no option --container-image); try enroot.")
    elif not problems:
        try:
            problems += _without_mpi(request, config.launcher.slurm)
            problems += _of_image(config) if in_image else []
            there, machines = slurm.cluster()
            config = limits.with_gpus(config, request.accelerator, there, machines)
            problems += limits.without_gpus(config, request.accelerator, there, machines)
            problems += limits.problems(config, there, machines)
            problems += policy.problems(config, slurm.accounting(), there)
            problems += [] if problems else _script_problems(request, config)
        except SlurmError as error:
            silent = f"Slurm does not answer on {request.node}: {error}"
            problems.append(str(error) if config.launcher.slurm.rest else silent)
    offer = {"mark": secrets.token_hex(8)}
    return {"ok": not problems, "problems": problems, "facts": facts, "offer": offer}


def _of_image(config: configuration.JobConfig) -> list[str]:
    """Return the problems of a job's image, and of the paths that its processes need there."""
    found = image.problems(config.launcher.slurm)
    if found or config.launcher.program or not isinstance(config, configuration.Config):
        return found
    return image_paths.problems(config, container.mounted(jobs_root(), config.launcher.slurm.mounts))


def _without_mpi(request: Request, slurm: SlurmConfig) -> list[str]:
    """Return why srun cannot start ranks with the job's ``mpi``. Through slurmrestd this is unknown."""
    if slurm.mpi == "none" or slurm.rest or not (why := commands.without_mpi(slurm.mpi)):
        return []
    return [
        f"srun on {request.node} cannot start ranks with launcher.slurm.mpi={slurm.mpi}: {why}. Install its "
        "plugin for PMIx and what that loads (libpmix-dev on Debian 12), or use launcher.slurm.mpi=none."
    ]


def _script_problems(request: Request, config: configuration.JobConfig) -> list[str]:
    """Return why Slurm itself would refuse the script, from a test without submitting it."""
    path = jobs_root() / f".{request.name}.{os.getpid()}.sbatch"
    try:
        write_atomically(path, _script(jobs_root() / request.name, config))
        problem = rest.of_config(config.launcher.slurm).would_run(path)
        return [f"Slurm refuses the job: {problem}"] if problem else []
    finally:
        path.unlink(missing_ok=True)


def _script(directory: Path, config: configuration.JobConfig) -> str:
    slurm = config.launcher.slurm
    pyxis: list[str] = []
    may = slurm.image and slurm.container in ("auto", "pyxis") and can_run("pyxis", slurm.image)
    if may and commands.has_pyxis():
        pyxis = image.of_pyxis(directory.parent, slurm)
    return script(directory.name, str(directory), sys.executable, config, pyxis)


def start(job: JobDirectory, request: Request, config: configuration.JobConfig) -> dict[str, Any]:
    """Write the job's directory and its script, and submit it.

    Raises:
        TrainerError: Slurm refuses it.
    """
    if job.slurm.is_file() and not (before := _updated(JobDirectory.of_master(job.path))).has_ended:
        return {"directory": str(job.path), "started": False, "job": before.to_json()}
    request = dataclasses.replace(request, nodes=(request.own,))
    slurm = rest.of_config(config.launcher.slurm)
    if request.accelerator != "cpu":
        there, machines = slurm.cluster()
        # With an unknown partition the job would be submitted without GPUs.
        if unknown := limits.unknown_partitions(config, there):
            raise ConfigError(unknown)
        config = limits.with_gpus(config, request.accelerator, there, machines)
    job.make(request)
    if request.config:
        job.write_config(request.config)
    job.write_resolved(configuration.dump(config.resolved(world_size(config))))
    write_atomically(job.key, secrets.token_hex(32), mode=0o600)
    write_atomically(job.script, _script(job.path, config))
    job.forget_stop()
    # An id may be reused after Slurm's records were deleted.
    shutil.rmtree(job.path / "nodes", ignore_errors=True)
    # Meanwhile others must see that this is a Slurm job which is being submitted.
    _write_number(job, _NO_NUMBER, config)
    known = State(
        request.name,
        "queued",
        launcher="slurm",
        master=request.node,
        started=time.time(),
        directory=str(job.path),
        progress=job.progress(),
    )
    job.write_state(known)
    try:
        number = slurm.submit(job.path, job.script.name)
    except SlurmError as error:
        job.write_state(dataclasses.replace(known, state="failed", reason=str(error), ended=time.time()))
        raise
    _write_number(job, number, config)
    return {"directory": str(job.path), "started": True, "job": known.to_json()}


def state(path: JobDirectory, wait: float = 0.0) -> State:
    """Return the state of a job, at once or when its agents change it.

    Args:
        path: The job's directory.
        wait: Seconds to wait for a change; 0: return at once.
    """
    job = JobDirectory.of_master(path.path)
    before, deadline = job.version, time.monotonic() + wait
    if wait and not job.read_state().has_ended:
        while job.version == before and time.monotonic() < deadline:
            time.sleep(_NEWS_S)
    # Another node may be the master by now.
    return _updated(JobDirectory.of_master(path.path))


def states(jobs: Iterable[JobDirectory]) -> list[State]:
    """Return the states of several jobs, with one query per interface to Slurm."""
    queues: dict[Access, list[SlurmJob] | SlurmError] = {}
    found = []
    for job in jobs:
        slurm = _access(job)
        if slurm not in queues:
            try:
                queues[slurm] = slurm.queue()
            except SlurmError as error:
                # Keep the error: a query may take a minute, which every job would repeat.
                queues[slurm] = error
        found.append(_updated(JobDirectory.of_master(job.path), queues[slurm]))
    return found


def stop(path: JobDirectory, *, now: bool, timeout: float) -> tuple[bool, State]:
    """Stop a job. Return whether it was still running or queued, and its state.

    Args:
        path: The job's directory.
        now: Stop at once, without a checkpoint.
        timeout: Seconds after which the job is cancelled.
    """
    job = JobDirectory.of_master(path.path)
    known = _updated(job)
    if known.has_ended:
        return False, known
    number = _number(job)
    if number == _NO_NUMBER:
        raise TrainerError(f"{job.path.name} is being submitted; stop it when it is in the queue.")
    deadline = time.monotonic() + timeout - _END_S
    if now or known.state in ("queued", "starting"):
        job.request_stop(0.0)
    else:
        job.request_stop(max(timeout - 2 * _END_S, timeout / 2))
        while (
            not (known := _updated(job)).has_ended and known.state != "queued" and time.monotonic() < deadline
        ):
            time.sleep(_POLL_S)
    slurm = _access(job)
    slurm.cancel(number)
    deadline = time.monotonic() + _END_S
    while not _gone(slurm, number) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return True, _updated(JobDirectory.of_master(path.path))


def _gone(slurm: Access, number: int) -> bool:
    """Whether a job holds no node any more."""
    with contextlib.suppress(SlurmError):
        seen = the_job(slurm.queue(), number)
        return seen is None or seen.has_ended
    return False


def _updated(job: JobDirectory, queue: list[SlurmJob] | SlurmError | None = None) -> State:
    """Return the state of a job; write a final state, because Slurm forgets.

    Args:
        job: Its directory, from the master's point of view.
        queue: Slurm's queue, or the error of the query; None to query it if needed.
    """
    known = job.read_state()
    fresh = known.state != "queued" and time.time() - job.version / 1e9 < _FRESH_S
    if known.has_ended or (fresh and not isinstance(queue, list)) or not job.slurm.is_file():
        return known
    number = _number(job)
    if number == _NO_NUMBER:
        if time.time() - job.slurm.stat().st_mtime < _SUBMIT_S:
            return known
        reason = "It was not submitted: whoever did it was ended."
        found = dataclasses.replace(known, state="failed", reason=reason, ended=time.time())
        found = dataclasses.replace(found, verdict=of_state(found))
        job.write_state(found)
        return found
    slurm = _access(job)
    try:
        if isinstance(queue, SlurmError):
            raise queue
        queue = slurm.queue() if queue is None else queue
    except SlurmError as error:
        return dataclasses.replace(known, reason=f"Slurm does not answer: {error}")
    seen = the_job(queue, number)
    # squeue still lists jobs that ended recently, but not who cancelled them.
    if seen is None or (seen.state == "CANCELLED" and not seen.by):
        try:
            seen = slurm.recorded(number) or seen
        except SlurmError as error:
            if seen is None:
                return dataclasses.replace(known, reason=f"Slurm's accounting does not answer: {error}")
    # The agents may have ended the job since the state was read.
    known = job.read_state()
    is_stopped = job.stop_requested() is not None and not job.stop_requested_by()
    words = [line for line in tail(job.path / OUTPUT, 4 + len(known.nodes)) if not _EXITED.match(line)]
    now = time.time()
    completed = None
    if seen is not None and seen.state == "COMPLETED" and not known.has_ended:
        completed = _first_seen(job, seen, now)
    found = view.current(known, seen, queue, is_stopped, now, words, completed)
    if found.has_ended or found.state in ("queued", "starting"):
        # No agent evaluates it.
        found = dataclasses.replace(found, verdict=of_state(found))
    if found.has_ended and not known.has_ended:
        job.write_state(found)
    return found


def _first_seen(job: JobDirectory, seen: SlurmJob, now: float) -> float:
    """Return when this host first saw that a job had ended, and record it.

    The time is from this host's own clock, because that of Slurm's controller may differ.
    """
    path = job.slurm.with_name("completed.json")
    # A requeued job has another end time.
    end = {"job": seen.job, "end": seen.end}
    with contextlib.suppress(FileNotFoundError, ValueError):
        kept = json.loads(path.read_text())
        if end.items() <= kept.items():
            return float(kept["seen"])
    write_atomically(path, json.dumps({**end, "seen": now}) + "\n")
    return now


def _write_number(job: JobDirectory, number: int, config: configuration.JobConfig) -> None:
    """Write a job's id, and the interface to Slurm for it."""
    slurm = config.launcher.slurm
    kept = {"job": number, **({"rest": slurm.rest, "rest_jwt": slurm.rest_jwt} if slurm.rest else {})}
    write_atomically(job.slurm, json.dumps(kept) + "\n")


def _number(job: JobDirectory) -> int:
    return int(json.loads(job.slurm.read_text())["job"])


def _access(job: JobDirectory) -> Access:
    """Return the interface to Slurm with which a job was submitted."""
    kept = json.loads(job.slurm.read_text())
    return rest.access(kept.get("rest"), kept.get("rest_jwt", ""))
