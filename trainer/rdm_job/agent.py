# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent of a job on one node.

There is one on each node, whatever the launcher. It starts this node's part, watches this node's processes,
and reports on them to the master's agent once a second. The master's agent decides: it starts an attempt when
all agents are connected, ends it everywhere when anything fails anywhere, and starts another if restarts are
left, once all nodes are back. An agent that hears nothing from the master ends its own processes, and itself
unless restarts are left. A process whose agent is gone ends itself.

An agent that waits for a file system still counts as alive for ``STALL_S``; see ``heartbeat``.

So whoever is cut off from whom, no process of a job outlives a lost node by more than ``SILENCE_S`` and the
time to kill it. When a process's end may be an echo of another failure, the other processes run until all
nodes have reported: ``SETTLE_S``, one beat, and up to ``SILENCE_S`` more if a node falls silent meanwhile.
After a launcher has ended it may take twice as long, because the wait starts again when a process fails. A
stop is obeyed at any time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rdm_job import culprit, health, network, processes, root_cause
from rdm_job.control import UNPROVEN, ControlClient, ControlServer
from rdm_job.directory import SLURM, TIME, JobDirectory
from rdm_job.heartbeat import BEAT_S, Heartbeat
from rdm_job.job_key import job_key
from rdm_job.part import Part
from rdm_job.protocol import FINAL, Failure, State
from rdm_job.root_cause import SILENCE_S

GOES_ON = "goes-on"
"""The argument of an agent that continues from its predecessor's state."""

GATHER_S = 60.0
"""How long the master waits for the other nodes' agents, in seconds, plus ``_GATHER_NODE_S`` per node."""
_GATHER_NODE_S = 0.25
RETURN_S = 600.0
"""How long a job with restarts left waits for a lost node or master, in seconds."""
LAUNCHER_S = 60.0
"""Seconds for a launcher to end after all of its processes. Slurm 22.05's srun sometimes never does, if it
has started them on two components of a job."""
_TICK_S = 0.25
_LOCK_S = 2.0
_FILES = 256


class Agent:
    """The loop of one node's agent.

    Args:
        directory: The job's.
        before: The state to continue from: of the job on other nodes, or of an agent that was killed.
    """

    def __init__(self, directory: JobDirectory, before: State | None = None) -> None:
        self.directory = directory
        self.part = Part(directory)
        request = self.part.request
        before = before or State(request.name)
        self.state = State(
            job=request.name,
            launcher=self.part.kind,
            master=request.master.name,
            nodes={node.name: "waiting" for node in request.nodes},
            failures=before.failures,
            restarts=before.restarts,
            started=time.time(),
            directory=str(directory.path),
            progress=directory.progress(),
        )
        self.gather_s = GATHER_S + _GATHER_NODE_S * len(request.nodes)
        self.restarts_left = self.part.config.launcher.max_restarts - before.restarts
        # An agent that Slurm started does not come back: the job gets other nodes instead.
        self.may_return = self.restarts_left > 0 and self.part.kind != "slurm"

    def run(self) -> None:
        """Work until the job has ended."""
        self.directory.forget_ranks()
        self.directory.write_state(self.state)
        try:
            self.part.prepare()
            if self.part.request.is_master:
                Master(self).run()
            else:
                Worker(self).run()
        except Exception as error:  # the job must not go on unwatched
            self.finish("failed", f"The agent of {self.part.node} failed: {type(error).__name__}: {error}.")
            raise
        finally:
            self.part.kill()
            self.part.clear()

    def write(self, **changes: Any) -> None:
        """Change the state, and write it if it differs."""
        changed = replace(self.state, **changes)
        if changed != self.state:
            self.state = changed
            self.directory.write_state(changed)

    def finish(self, state: str, reason: str = "", verdict: Mapping[str, Any] | None = None) -> None:
        """End the job here. Its processes are killed first, so that none runs when others read the state.

        Args:
            state: How it ended.
            reason: Why.
            verdict: If given, replaces the verdict that follows from the state alone.
        """
        self.part.kill()
        ended = replace(
            self.state,
            state=state,
            reason=reason,
            ended=time.time() if state in FINAL else None,
            progress=self.directory.progress() or self.state.progress,
        )
        evaluated = {**verdict, "since": ended.ended} if verdict else health.of_state(ended)
        self.write(**{**vars(ended), "verdict": evaluated})


class Worker:
    """The agent of any node but the master: it follows the master's orders."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        request = agent.part.request
        self._client = ControlClient(
            request.master.address, request.offer.agent_port, request.node, job_key(request.name)
        )
        self._heartbeat = Heartbeat(self._client)
        self._ended = False
        self._last_beat = 0
        self._begin_life("was started again: its container was restarted")

    def run(self) -> None:
        """Obey until the job has ended, or the master is lost and does not come back."""
        try:
            self._work()
        finally:
            self._heartbeat.close()

    def _work(self) -> None:
        agent, client = self._agent, self._client
        beat, met = 0.0, False
        while not self._ended:
            for _, message in self._heartbeat.receive(_TICK_S):
                met = True
                self._obey(message)
            if time.monotonic() - beat >= BEAT_S and not self._ended:
                beat = time.monotonic()
                self._send({**agent.part.report(), "answers": self._last_beat})
            if client.silent_for() > (SILENCE_S if met else agent.gather_s) and not self._waits(met):
                return

    def _begin_life(self, since: str) -> None:
        """Take a new identity, so that the master sees that this agent has lost the attempt it worked on."""
        self._life = {"life": f"{os.getpid()} {time.time()}", "since": since}

    def _send(self, message: dict[str, Any]) -> None:
        self._heartbeat.send({**message, **self._life})

    def _waits(self, met: bool) -> bool:
        """End the processes and wait for a lost master; return whether it may still come back."""
        agent = self._agent
        if agent.directory.stop_requested() is not None:
            agent.finish("stopped", "It was stopped while its master was lost.")
            return False
        if not (met and agent.may_return) or self._client.silent_for() > RETURN_S:
            master = agent.state.master
            agent.finish("failed", f"{agent.part.node} has heard nothing from the master {master}.")
            return False
        if agent.state.state != "restarting":
            agent.part.kill()
            # A restarted master counts its attempts from 0.
            agent.part.attempt = -1
            self._begin_life(
                f"has heard nothing from the master {agent.state.master} for {SILENCE_S:g} s and has ended "
                "its processes"
            )
            agent.write(state="restarting")
        return True

    def _obey(self, message: dict[str, Any]) -> None:
        """Carry out the master's order. The master repeats orders, as a connection may have been lost."""
        agent = self._agent
        self._last_beat = int(message.get("beat") or self._last_beat)
        order = message.get("order")
        if order == "run" and message["attempt"] != agent.part.attempt:
            agent.part.start(int(message["attempt"]), int(message["port"]), str(message["network"]))
            agent.write(state="running", nodes={**agent.state.nodes, agent.part.node: "running"})
        elif order == "save":
            agent.part.request_end()
            agent.write(state="stopping")
        elif order == "kill":
            # The order is repeated, and the master's launcher may have begun the next attempt here by then.
            agent.part.kill(int(message["attempt"]))
            self._send({"attempt": message["attempt"], "quiet": True})
        elif order == "end":
            agent.finish(str(message["state"]), str(message["reason"]))
            self._ended = True


class Master:
    """The master's agent: it decides for all nodes."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        request = agent.part.request
        nodes = len(request.nodes)
        processes.allow_files(2 * nodes + UNPROVEN + _FILES)
        self._server = ControlServer(
            request.master.address, request.offer.agent_port, job_key(request.name), nodes
        )
        self._heartbeat = Heartbeat(self._server)
        self._others = [node.name for node in request.nodes[1:]]
        self._network = network.network_of(request.master.address)
        self._reports: dict[str, dict[str, Any]] = {}
        self._confirmed: set[str] = set()
        self._order: dict[str, Any] = {}
        self._beat = 0.0
        # Under Slurm every agent is new; elsewhere agents may still be running the last attempt.
        self._first = 0 if agent.part.kind == "slurm" else agent.state.restarts
        self._attempt = self._first
        self._replies = root_cause.Replies(self._others)
        self._inquiry = root_cause.Inquiry(self._replies)
        self._health = health.Health(request, agent.part.config)
        self._written_at = 0.0
        self._processes_done_at: float | None = None

    def run(self) -> None:
        """Run attempts until one finishes or none is left."""
        agent = self._agent
        before = agent.state.restarts - self._first
        restarts = agent.restarts_left + self._first
        try:
            if not self._gather():
                return
            if agent.restarts_left < 0:
                # The agent was killed more often than the job may be restarted.
                self._end("failed", agent.state.failures[-1].reason)
                return
            if self._first:
                # The previous agent was killed before it could end its attempt.
                self._attempt -= 1
                self._kill_everywhere()
                self._attempt += 1
            while not self._try():
                agent.write(state="restarting" if self._attempt < restarts else agent.state.state)
                if self._attempt >= restarts or not self._all_return():
                    if agent.state.state != "queued" and not agent.state.has_ended:
                        self._end("failed", agent.state.failures[-1].reason)
                    return
                self._attempt += 1
                agent.write(state="restarting", restarts=before + self._attempt)
        finally:
            self._heartbeat.close()

    def _gather(self) -> bool:
        """Wait for all agents."""
        deadline = time.monotonic() + self._agent.gather_s
        while missing := [name for name in self._others if self._server.silent_for(name) is None]:
            self._tick()
            if self._agent.directory.stop_requested() is not None:
                by = self._agent.directory.stop_requested_by()
                if by == SLURM:
                    self._end("stopping", "Slurm ended it before it began.")
                elif by == TIME:
                    self._end_before_time_limit("It had not begun")
                else:
                    self._end("stopped", "It was stopped before it began.")
                return False
            if time.monotonic() > deadline:
                reason = (
                    f"The agent of {', '.join(missing)} did not come within {self._agent.gather_s:.0f} s: "
                    "its container may have been restarted, or the fabric is cut."
                )
                self._fail(Failure(missing[0], None, reason))
                self._end("failed", self._agent.state.failures[-1].reason)
                return False
        return True

    def _try(self) -> bool:
        """Make an attempt. Return whether the job ended with it."""
        agent = self._agent
        port = self._port()
        self._reports.clear()
        self._replies.begin()
        self._health.begin()
        self._inquiry = root_cause.Inquiry(self._replies)
        self._send({"order": "run", "attempt": self._attempt, "port": port, "network": self._network})
        agent.part.start(self._attempt, port, self._network)
        agent.write(state="running", nodes=dict.fromkeys(agent.state.nodes, "running"))
        while True:
            self._tick()
            self._write_progress()
            if self._grace() is not None:
                self._stop()
                return True
            if self._failed():
                self._kill_everywhere()
                return False
            if self._done():
                hung = "" if self._launchers_done() else "A launcher outlived its processes, and was killed."
                self._end("finished", hung)
                return True

    def _send(self, order: dict[str, Any]) -> None:
        """Send an order now, and again with every beat until the next order."""
        self._order = order
        self._heartbeat.send(order)

    def _port(self) -> int:
        """Return the port where the processes meet; a port of an earlier attempt may still be in use."""
        request = self._agent.part.request
        port = request.offer.master_port + self._attempt
        if self._attempt == 0 or network.is_free(request.master.address, port):
            return port
        return (network.take_free_ports(request.master.address, 1, port) or [port])[0]

    def _tick(self) -> None:
        """Receive messages, and send a beat once a second."""
        if time.monotonic() - self._beat >= BEAT_S:
            self._beat = time.monotonic()
            self._replies.beat += 1
            self._heartbeat.send({"beat": self._replies.beat, **self._order})
            self._reports[self._agent.part.node] = self._agent.part.report()
        for node, message in self._heartbeat.receive(_TICK_S):
            self._replies.record(node, message)
            if message.get("attempt") != self._attempt:
                continue
            if message.get("quiet"):
                self._confirmed.add(node)
            else:
                self._reports[node] = message

    def _write_progress(self) -> None:
        """Write the nodes' reports to the state, at most once a second: with many nodes they are large."""
        agent, reports = self._agent, self._reports
        if time.monotonic() - self._written_at < BEAT_S:
            return
        self._written_at = time.monotonic()
        states = dict(agent.state.nodes)
        for name, report in reports.items():
            ranks = set(report["ranks"].values())
            states[name] = "failed" if "failed" in ranks else "done" if ranks == {"done"} else "running"
        agent.write(nodes=states, **self._health.summary(agent.state, reports))

    def _grace(self) -> float | None:
        """Return how many seconds the processes have to save and end; None without a request to stop."""
        requested = [self._agent.directory.stop_requested(), *(one["stop"] for one in self._reports.values())]
        return min((one for one in requested if one is not None), default=None)

    def _stop(self) -> None:
        """Let the job save and end, or end it."""
        agent, began = self._agent, time.monotonic()
        agent.write(state="stopping")
        if self._grace():
            self._send({"order": "save", "attempt": self._attempt})
        # Earlier reports may lack processes that have started since.
        beat = self._replies.beat + 1
        while (self._grace() or 0.0) > time.monotonic() - began and self._is_running(beat):
            # Again, for processes that have started since.
            agent.part.request_end()
            self._tick()
            self._write_progress()
        by = agent.directory.stop_requested_by()
        saved = self._done()
        self._kill_everywhere()
        how = "It saved and ended" if saved else "It was ended without saving"
        if by == SLURM:
            # Slurm knows why, and whether it requeues the job.
            self._end("stopping", f"{how} when Slurm ended it.")
        elif by == TIME:
            self._end_before_time_limit(how)
        else:
            self._end("stopped", f"{how}, as requested.")

    def _end_before_time_limit(self, how: str) -> None:
        if self._attempt - self._first < self._agent.restarts_left:
            self._requeue(f"{how} before its time limit, and goes on when Slurm starts it again.")
        else:
            self._end("stopped", f"{how} before its time limit, and no restarts are left: resume it.")

    def _is_running(self, beat: int) -> bool:
        """Whether any process that could save still runs; a launcher without processes has none.

        Args:
            beat: The processes are known once all nodes have reported since this beat.
        """
        if any(self._is_lost(name) for name in self._others) or self._done():
            return False
        if self._replies.beat < beat or not self._replies.have_replied(beat):
            return True
        states = [state for report in self._reports.values() for state in report["ranks"].values()]
        # All done, but not every launcher has ended: it may report its processes' end late.
        return "running" in states or set(states) == {"done"}

    def _failed(self) -> bool:
        """Return whether the attempt has failed with a known root cause, and record it."""
        known = self._known()
        failure = self._inquiry.root_cause(known, time.monotonic())
        if failure is None:
            return False
        self._fail(failure, known.lost)
        return True

    def _known(self) -> root_cause.Known:
        """Return what is known so far of this attempt's failure."""
        ended = [
            culprit.Ended.of(node, one) for node, report in self._reports.items() for one in report["failed"]
        ]
        lost = [name for name in self._others if self._is_lost(name)]
        return root_cause.Known(tuple(lost), self._replies.restarted, tuple(ended), self._launcher_failure())

    def _launcher_failure(self) -> Failure | None:
        """Return a launcher's failure: it failed, or all launchers succeeded but not all processes did."""
        for node, report in self._reports.items():
            if ended := culprit.how_it_ended(report["launcher"] or 0):
                reason = f"The launcher on {node} failed: {ended}."
                return Failure(node, None, reason, tuple(report["lines"]))
        if not self._launchers_done() or self._done():
            return None
        states = [state for report in self._reports.values() for state in report["ranks"].values()]
        master, world = self._agent.part.node, self._agent.part.request.world_size
        reason = (
            f"The launcher on {master} ended, but only {states.count('done')} of {world} processes "
            "have said that they are done."
        )
        return Failure(master, None, reason, tuple(self._reports[master]["lines"]))

    def _is_lost(self, name: str) -> bool:
        silent = self._server.silent_for(name)
        return silent is not None and silent > SILENCE_S

    def _fail(self, failure: Failure, lost: tuple[str, ...] = ()) -> None:
        for name in lost:
            self._replies.forget(name)
        self._agent.write(
            failures=[*self._agent.state.failures, failure],
            nodes={**self._agent.state.nodes, failure.node: "failed", **dict.fromkeys(lost, "lost")},
        )

    def _launchers_done(self) -> bool:
        """Return whether all launchers have exited with code 0."""
        nodes = [node.name for node in self._agent.part.request.nodes]
        required = nodes if self._agent.part.launcher.everywhere else nodes[:1]
        return all(name in self._reports and self._reports[name]["launcher"] == 0 for name in required)

    def _done(self) -> bool:
        """Return whether all launchers and all processes on all nodes have ended without an error.

        A launcher that still runs LAUNCHER_S after its processes hangs, and counts as ended.
        """
        ranks = [state for report in self._reports.values() for state in report["ranks"].values()]
        if ranks != ["done"] * self._agent.part.request.world_size:
            self._processes_done_at = None
            return False
        if self._processes_done_at is None:
            self._processes_done_at = time.monotonic()
        return self._launchers_done() or time.monotonic() - self._processes_done_at > LAUNCHER_S

    def _kill_everywhere(self) -> None:
        """End this attempt's processes on all nodes, and wait until all but the lost nodes confirm it."""
        self._confirmed.clear()
        self._send({"order": "kill", "attempt": self._attempt})
        self._agent.part.kill()
        deadline = time.monotonic() + SILENCE_S
        while not self._confirmed.issuperset(name for name in self._others if not self._is_lost(name)):
            if time.monotonic() > deadline:
                return
            self._tick()

    def _all_return(self) -> bool:
        """Wait for lost nodes. Return whether all are back, with the attempt's processes ended."""
        agent = self._agent
        deadline = time.monotonic() + RETURN_S
        while away := [name for name in self._others if self._is_lost(name)]:
            if not agent.may_return:
                self._requeue(agent.state.failures[-1].reason)
                return False
            self._tick()
            if self._agent.directory.stop_requested() is not None:
                self._end("stopped", f"It was stopped while it waited for {', '.join(away)}.")
                return False
            if time.monotonic() > deadline:
                return False
        self._kill_everywhere()
        return True

    def _requeue(self, reason: str) -> None:
        """End here, and let Slurm start the job again."""
        self._agent.write(restarts=self._agent.state.restarts + 1)
        self._end("queued", reason)

    def _end(self, state: str, reason: str = "") -> None:
        agent = self._agent
        self._heartbeat.send({"order": "end", "state": state, "reason": reason})
        nodes = agent.state.nodes
        if state == "finished":
            nodes = dict.fromkeys(nodes, "done")
        elif state in ("stopped", "stopping", "queued"):
            nodes = dict.fromkeys(nodes, "stopped")
        newest = health.newest_progress(agent.state, self._reports)
        agent.part.kill()
        agent.write(nodes=nodes, progress=newest)
        # A finished job can still have a bad verdict.
        ended = replace(agent.state, state=state)
        result = self._health.verdict(ended, self._reports) if state == "finished" else None
        agent.finish(state, reason, result)
        if newest.get("time", 0) > agent.state.progress.get("time", 0):
            agent.write(progress=newest)


def main(path: str, goes_on: str = "") -> int:
    """Be the agent of the job in a directory: ``python -m rdm_job.agent DIRECTORY [GOES_ON]``.

    Args:
        path: The directory.
        goes_on: ``GOES_ON`` when the last agent was killed at work, and this one continues the job.

    Returns:
        The exit code: 0, also when the job has failed; 1 when another agent works on the job.
    """
    # Stopping the container must not orphan the job's processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    directory = JobDirectory(Path(path))
    before = after_restart(directory.read_state(), directory.node) if goes_on == GOES_ON else None
    return int(work(directory, before) is None)


def after_restart(known: State, node: str) -> State:
    """Return the state to continue from after a job's agent was killed. Pure.

    On the master, the killed agent counts as a failure and a restart. On other nodes the state is unchanged:
    the master records their failures.

    Args:
        known: The state that the killed agent last wrote on this node.
        node: This node.
    """
    if node != known.master:
        return known
    reason = f"The agent of {node} was started again: its container was restarted."
    failures = [*known.failures, Failure(node, None, reason)]
    return replace(known, failures=failures, restarts=known.restarts + 1)


def work(directory: JobDirectory, before: State | None = None) -> State | None:
    """Be the agent of a job until it has ended here.

    Returns:
        How it ended; None when another agent works on the job.
    """
    # Others, such as a removal, may hold the lock for a moment.
    deadline = time.monotonic() + _LOCK_S
    while (lock := directory.lock()) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    with lock:
        agent = Agent(directory, before)
        agent.run()
    return agent.state


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
