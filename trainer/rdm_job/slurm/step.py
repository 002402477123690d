# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the agent on each node of a job that Slurm has started, as a task of srun.

The nodes meet like the members of a rendezvous, through files in the job's directory, which all nodes share.
The first node, with rank 0, writes the job's directory; then all agents start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from rdm_core import config as configuration
from rdm_core.config import workload_of
from rdm_core.config.slurm import components
from rdm_core.errors import DONE, FAILED, TrainerError
from rdm_core.execution_environment import EXECUTION_ENVIRONMENT, FORMER_VARIABLE, HOST
from rdm_core.heartbeat import NODE_VARIABLE
from rdm_job import agent, network, outputs
from rdm_job.directory import SLURM, TIME, JobDirectory
from rdm_job.protocol import Failure, Node, Offer, State
from rdm_job.rendezvous.meeting import Launcher, Started, Worker
from rdm_job.rendezvous.roster import Member, Roster
from rdm_job.rendezvous.transports import FileClient, FileServer
from rdm_job.slurm import commands, view
from rdm_job.slurm.script import RUN_VARIABLE
from rdm_job.versions import versions

MEET_S = 300.0
"""How long nodes wait for each other in the job's directory, in seconds: a shared file system may be late."""
_KILL_WAIT_S = 20.0
"""How long processes may take to save when Slurm ends the job, in seconds; its KillWait is 30 by default."""
_TIME_S = 3600.0


def run(path: Path) -> int:
    """Be the agent of this node, until the job has ended here.

    Returns:
        The exit code: 0 even when the job has failed; 1 when it could not begin.

    Raises:
        TrainerError: This is not a task of srun, or the nodes do not meet.
    """
    try:
        number, count = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
        name = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        meeting = path / "nodes" / os.environ[RUN_VARIABLE]
    except (KeyError, ValueError):
        raise TrainerError("This is for srun: job.sbatch in the job's directory starts it.") from None
    job = JobDirectory(path, name)
    config = configuration.load_job(job.resolved)
    host = socket.gethostname().partition(".")[0]
    own = Member(
        name,
        host,
        _address(name, config.launcher.slurm.interface),
        _slots(config)[number],
        versions=versions(training=workload_of(config).reports_progress),
    )
    os.environ[NODE_VARIABLE] = name
    os.environ["RDM_CLUSTER_KEY"] = str(job.key)
    os.environ["RDM_JOBS"] = str(path.parent)
    os.environ[EXECUTION_ENVIRONMENT] = os.environ[FORMER_VARIABLE] = HOST
    # Slurm ends a job with a signal to all its processes, and later kills them.
    signal.signal(signal.SIGTERM, lambda *_: _request_stop(job, SLURM, _KILL_WAIT_S))
    before: State | None = None
    if number == 0:
        before = _lead(job, meeting, own, count, config)
        starts = not before.has_ended
    else:
        worker = Worker(FileClient(meeting, number), own, _show_nothing)
        starts = isinstance(
            worker.gather(MEET_S, f"the job's first node ({meeting})", lambda: False), Started
        )
    if not starts:
        return FAILED
    return FAILED if agent.work(job, before) is None else DONE


def refuse(path: Path, why: str) -> None:
    """Report to the others that this node cannot take part."""
    meeting, number = path / "nodes" / os.environ[RUN_VARIABLE], int(os.environ["SLURM_PROCID"])
    if number == 0:
        FileServer(meeting, 1).send({"type": "end", "code": FAILED, "reason": why})
    else:
        FileClient(meeting, number).send({"type": "cannot", "reason": why})


def time_is_up(path: Path) -> None:
    """Let the job save and end, because Slurm has signalled that its time limit is near."""
    _request_stop(JobDirectory(path), TIME, _TIME_S)


def again(path: Path) -> bool:
    """Whether to requeue the job, whose agents have all ended."""
    job = JobDirectory.of_master(path)
    if job.stop_requested() is not None and not job.stop_requested_by():
        return False
    # Read the launcher's messages as the first worker.
    messages = FileClient(path / "nodes" / os.environ[RUN_VARIABLE], 1).receive()
    if not any(message["type"] == "start" for message in messages):
        # Its agents could not start, and would not the next time.
        return False
    return view.goes_on(job.read_state(), configuration.load_job(job.resolved).launcher.max_restarts)


def before_this_run(known: State, run_before: bool, most_restarts: int, now: float) -> State:
    """Return the job's state before this run; a requeue by Slurm counts as a failure and a restart.

    Args:
        known: The state that its agents last wrote.
        run_before: Whether Slurm has started the job before.
        most_restarts: ``launcher.max_restarts``.
        now: Seconds since 1970.
    """
    if not run_before or known.state == "queued":
        return known
    # Its agents had no time to record this.
    reason = (
        "Slurm put it back into the queue: a node failed, an agent was killed, or another job went before it."
    )
    failures = [*known.failures, Failure(known.master, None, reason)]
    if known.restarts >= most_restarts:
        reason = f"{reason} No restarts are left: resume it."
        return dataclasses.replace(known, state="failed", reason=reason, ended=now, failures=failures)
    return dataclasses.replace(known, restarts=known.restarts + 1, failures=failures)


def _request_stop(job: JobDirectory, who: str, grace: float) -> None:
    """Request the agents to stop, unless the user has."""
    _forget_earlier_stop(job)
    if job.stop_requested() is None:
        job.request_stop(grace, who, os.environ[RUN_VARIABLE])


def _forget_earlier_stop(job: JobDirectory) -> None:
    """Remove Slurm's request to stop an earlier run; one to stop this run may come before its agents."""
    if job.stop_requested_by() and job.run_to_stop() != os.environ[RUN_VARIABLE]:
        job.forget_stop()


def _lead(
    job: JobDirectory, meeting: Path, own: Member, count: int, config: configuration.JobConfig
) -> State:
    """Wait for all nodes, and write the job's directory. Return the previous state, like :func:`_begin`."""
    roster = Roster(own, count, "connection", commands.nodes(os.environ.get("SLURM_JOB_NODELIST", "")))
    launcher = Launcher(FileServer(meeting, count), roster, os.environ[RUN_VARIABLE], _show_nothing)
    try:
        members = launcher.gather(MEET_S)
        assert members is not None
        before = _begin(job, members, config)
    except Exception as error:
        # On any error: otherwise the others would wait.
        launcher.cancel(str(error))
        raise
    if before.has_ended:
        launcher.cancel(before.reason)
    else:
        launcher.start(job.stored().offer.master_port)
    return before


def _show_nothing(line: str) -> None:
    """Print nothing: the last lines of the job's output must say how it ended."""


def _begin(job: JobDirectory, members: Sequence[Member], config: configuration.JobConfig) -> State:
    """Write the job's directory for its members. Return the previous state: final if no restarts are left.

    Raises:
        TrainerError: The first node has no free ports.
    """
    before = JobDirectory.of_master(job.path).read_state()
    runs = int(os.environ[RUN_VARIABLE].rpartition(".")[2])
    before = before_this_run(before, runs > 0, config.launcher.max_restarts, time.time())
    _forget_earlier_stop(job)
    request = job.stored()
    nodes = tuple(Node(member.name, member.address, member.gpus) for member in members)
    number = int(os.environ[RUN_VARIABLE].partition(".")[0])
    requested = config.launcher.master_port
    ports = network.take_free_ports(nodes[0].address, 2 + config.launcher.max_restarts, number)
    if ports is None:
        raise TrainerError(f"No ports are free on {nodes[0].address}.")
    offer = Offer(ports[0], requested or ports[1], request.offer.mark)
    for node in nodes:
        job.make(dataclasses.replace(request, node=node.name, nodes=nodes, offer=offer))
    request = dataclasses.replace(request, node=nodes[0].name, nodes=nodes, offer=offer)
    job.make(request)
    outputs.link(job, config, request.world_size, time.time())
    if not before.has_ended:
        # With this state a later requeue counts as a restart, however the agents end.
        before = dataclasses.replace(before, state="starting", reason="")
    job.write_state(before)
    return before


def _slots(config: configuration.JobConfig) -> list[int]:
    """Return the number of processes on each node, in the order of the components."""
    return [part.slots for part in components(config) for _ in range(part.nodes)]


def _address(name: str, interface: str | None) -> str:
    """Return the address at which the others reach this node.

    Args:
        name: The node's.
        interface: ``launcher.slurm.interface``.

    Raises:
        TrainerError: There is none.
    """
    if interface is not None:
        found = network.address_of(interface)
        if found is None:
            raise TrainerError(f"{name} has no interface {interface} with an IPv4 address.")
        return found
    for known_as in (name, socket.gethostname()):
        with contextlib.suppress(OSError):
            for *_, to in socket.getaddrinfo(known_as, None, socket.AF_INET):
                address = str(to[0])
                # Debian's /etc/hosts has 127.0.1.1 for the host's own name.
                if not address.startswith("127.") and network.interface_of(address) is not None:
                    return address
    found = network.outward_address()
    if found is None:
        raise TrainerError(f"{name} has no address that its name leads to; give launcher.slurm.interface.")
    return found
