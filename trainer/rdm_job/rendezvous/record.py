# SPDX-License-Identifier: GPL-3.0-or-later
"""A member's job directory, in the same form as any job's, so that the same verbs and reports work."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_core.errors import DONE, STOPPED
from rdm_job import health
from rdm_job.agent_lock import AgentLock
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Failure, Node, Offer, Request, State
from rdm_job.rendezvous.meeting import BEAT_S, TERMINATED, End, Started
from rdm_job.watch import Watch

_POLL_S = 1.0


class Record:
    """One member's record of a job that starts. An error in writing it does not end the job.

    Args:
        job: The job's name, in the form of any job's.
        folder: Its directory, which members may share; nothing is kept without one.
        config: Its configuration, YAML.
        started: The members, and this one's rank.
        show: Prints a line for the user.

    Attributes:
        mark: The id in the environment of the job's processes.
        logs: The files for the command's output and errors.
        ranks: The directory in which torchrun writes a file for each rank.
        should_stop: Whether ``rdm-trainer job stop`` has requested a stop.
    """

    def __init__(
        self, job: str, folder: Path | None, config: str, started: Started, show: Callable[[str], None]
    ) -> None:
        self.mark = ""
        self.logs: tuple[Path, Path] | None = None
        self.ranks = Path()
        self.should_stop = False
        self._directory: JobDirectory | None = None
        self._lock: AgentLock | None = None
        self._reports: dict[str, Mapping[str, Any]] = {}
        self._own: Mapping[str, Any] = {}
        self._over = threading.Event()
        if folder is None:
            return
        try:
            self._begin(job, folder, config, started)
        except OSError as error:
            show(f"Nothing is kept of this job: {folder} cannot be written: {error.strerror}.")

    def _begin(self, job: str, folder: Path, config: str, started: Started) -> None:
        members = started.members
        nodes = tuple(Node(member.name, member.address, member.gpus) for member in members)
        own = members[started.rank]
        offer = Offer(master_port=started.port, mark=secrets.token_hex(8))
        accelerator = own.gpu.partition(" ")[0] or "cpu"
        request = Request(job, own.name, nodes, accelerator=accelerator, offer=offer)
        directory = JobDirectory(folder, own.name)
        directory.make(request)
        resolved = configuration.load_text(config).resolved(request.world_size)
        directory.write_config(config)
        directory.write_resolved(configuration.dump(resolved))
        directory.forget_stop()
        self._lock = directory.lock()
        self._state = State(
            job=request.name,
            state="running",
            launcher="torchrun",
            master=nodes[0].name,
            nodes={node.name: "running" for node in nodes},
            started=time.time(),
            directory=str(folder),
        )
        directory.write_state(self._state)
        self.mark = request.job_id
        self.logs = directory.log(own.name, "out"), directory.log(own.name, "err")
        self.ranks = directory.logs / "ranks"
        self._watch = Watch(directory, request, resolved)
        # torchrun's processes write no records.
        self._watch.start_polling(lambda: ())
        evaluation = health.Health(request, resolved) if started.rank == 0 else None
        self._poller = threading.Thread(target=self._poll, args=(directory, evaluation), daemon=True)
        self._poller.start()
        self._directory = directory

    def report(self) -> Mapping[str, Any]:
        """Return this member's report, in the form of an agent's; empty without a record."""
        return self._own

    def receive_report(self, member: str, report: Mapping[str, Any]) -> None:
        """Receive another member's report, for the state."""
        self._reports[member] = report

    def _poll(self, directory: JobDirectory, evaluation: health.Health | None) -> None:
        """Read the directory, and on the launcher write all members' reports to the state.

        This runs in its own thread, so that the member's heartbeat continues when a file system hangs.
        """
        while not self._over.wait(_POLL_S):
            # What cannot be read or written now may be later.
            with contextlib.suppress(OSError):
                self._update(directory, evaluation)

    def _update(self, directory: JobDirectory, evaluation: health.Health | None) -> None:
        self.should_stop = directory.stop_requested() is not None
        if watched := self._watch.report():
            self._own = {"gpu": self._watch.gpu, "watch": watched, "progress": directory.progress()}
        if evaluation is not None and self._own:
            reports = {self._state.master: self._own, **self._reports}
            self._state = replace(self._state, **evaluation.summary(self._state, reports))
            directory.write_state(self._state)

    def end(self, end: End) -> None:
        """Write the end of the job."""
        if self._directory is None:
            return
        self._over.set()
        self._poller.join(BEAT_S)
        # A command may return the code of a stop without a request.
        is_stop = end.code in (STOPPED, TERMINATED) and not end.member
        state = "finished" if end.code == DONE else "stopped" if is_stop else "failed"
        nodes = dict.fromkeys(self._state.nodes, "stopped" if is_stop else "done")
        if end.member in nodes:
            nodes[end.member] = "failed"
        failures = []
        if state == "failed":
            failures.append(Failure(end.member or self._directory.node, None, end.reason, end.errors))
        ended = replace(
            self._state,
            state=state,
            reason=end.reason,
            nodes=nodes,
            failures=failures,
            ended=time.time(),
            progress=self._directory.progress(),
        )
        # Progress read from logs may lack the last lines: show it, but do not evaluate it.
        shown = ended.progress or self._state.progress
        self._directory.write_state(replace(ended, verdict=health.of_state(ended), progress=shown))

    def close(self) -> None:
        """Release the directory."""
        if self._directory is not None:
            self._watch.end()
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.close()
