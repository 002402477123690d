# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's part of a job: its launcher, its processes, its logs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any

from rdm_core import config as configuration
from rdm_core.heartbeat import NODE_VARIABLE
from rdm_job import processes
from rdm_job.culprit import GONE, lines_of
from rdm_job.directory import JobDirectory
from rdm_job.launchers import Attempt, environment_of_launcher, exports, launcher_of
from rdm_job.links import Links
from rdm_job.slurm.script import srun_of_ranks
from rdm_job.watch import Watch
from rdm_log.tails import tail

_MOST_FAILURES = 8
"""How many of a node's failed processes, the earliest first, are reported to the master."""
_SEARCHED_LINES = 400
"""How many of the last lines of the node's error log are searched for a process's own."""


class Part:
    """This node's part of a job."""

    def __init__(self, directory: JobDirectory) -> None:
        self.directory = directory
        self.request = directory.request()
        self.config = configuration.load_job(directory.resolved)
        self.kind = self.config.launcher.kind
        self.node = self.request.node
        self.launcher = launcher_of(self.config.launcher)
        self.links = Links(self.request.job_id) if self.launcher.uses_ssh else None
        self._launcher: subprocess.Popen[bytes] | None = None
        self._alive_at: dict[int, float] = {}
        self._signalled: set[int] = set()
        self._watch = Watch(directory, self.request, self.config)
        self.attempt = -1
        self._ended = -1
        self._errors_before = 0
        self._note_logs()

    def start(self, number: int, port: int, network_cidr: str) -> None:
        """Begin an attempt."""
        # A cleaner may have removed old files from /tmp.
        self.prepare()
        self.attempt = number
        self._alive_at.clear()
        self._signalled.clear()
        self._watch.begin()
        self._watch.start_polling(self._records)
        attempt = Attempt(
            job=self.request.job_id,
            directory=str(self.links.job if self.links else self.directory.path),
            nodes=self.request.nodes,
            network=network_cidr,
            port=port,
            number=number,
            accelerator=self.request.accelerator,
            extra=self.config.launcher.env,
            python=self.links.python if self.links else sys.executable,
            srun=srun_of_ranks(self.config),
        )
        if not self.launcher.everywhere and not self.request.is_master:
            return
        self.directory.write_exports(exports(attempt))
        out, err = (self.directory.log(self.node, stream) for stream in ("out", "err"))
        with out.open("ab") as output, err.open("ab") as errors:
            self._launcher = subprocess.Popen(  # a list, and no shell
                self.launcher.command(attempt, self.request.node_rank),
                # A path that every node has: DeepSpeed's launcher changes to it on each.
                cwd=self.links.path if self.links else self.directory.path,
                env={
                    **environment_of_launcher(self.launcher, attempt, os.environ),
                    NODE_VARIABLE: self.node,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def prepare(self) -> None:
        """Make the links that the master's launcher needs over ssh, before this node's first report."""
        if self.links is not None:
            self.links.make(self.directory.path, self.directory.exports)

    def clear(self) -> None:
        """Remove the links, and the metrics that dashboards would take for a running job's."""
        if self.links is not None:
            self.links.remove()
        self._watch.end()

    @property
    def launcher_exit(self) -> int | None:
        """The launcher's exit code; None while it runs, and on nodes that have none."""
        return None if self._launcher is None else self._launcher.poll()

    def report(self) -> dict[str, Any]:
        """Return the status of this node's part, for the master."""
        code = self.launcher_exit
        ranks = [self._update(record) for record in self._records()]
        failed = sorted(
            (one for one in ranks if one["state"] == "failed"), key=lambda one: float(one["time"])
        )
        log = []
        if failed or code:
            log = tail(self.directory.log(self.node, "err"), _SEARCHED_LINES, since=self._errors_before)
        if ranks and all(record["state"] != "running" for record in ranks):
            self._read_to_the_end(ranks)
        return {
            "attempt": self.attempt,
            "ranks": {str(record["rank"]): record["state"] for record in ranks},
            "failed": [self._described(record, log) for record in failed[:_MOST_FAILURES]],
            "lines": lines_of(-1, log),
            "launcher": code,
            "gpu": self._watch.gpu,
            "watch": self._watch.report(),
            "stop": self.directory.stop_requested(),
            "progress": self.directory.progress(),
        }

    def request_end(self) -> None:
        """Signal each of this node's processes once to save and end."""
        running = {int(record["pid"]) for record in self._records() if record["state"] == "running"}
        pids = running.intersection(processes.of_job(self.request.job_id)) - self._signalled
        self._signalled |= pids
        processes.end(pids, signal.SIGTERM)

    def kill(self, until: int | None = None) -> None:
        """End the job's processes on this node now.

        Args:
            until: The last attempt to end; by default, all are.
        """
        processes.end_all(self.request.job_id, until=until)
        if self._launcher is not None and (until is None or self.attempt <= until):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(timeout=5)
            self._launcher = None
        last = self.attempt if until is None else until
        if last > self._ended:
            self._ended = last
            self.directory.end_attempt(last)
            # Again, for processes that began before they could read that.
            processes.end_all(self.request.job_id, until=until)
            self._note_logs()

    def _note_logs(self) -> None:
        """Note where the next attempt's logs begin: the master's launcher may begin it before its order."""
        with contextlib.suppress(OSError):
            self._errors_before = self.directory.log(self.node, "err").stat().st_size
            self._watch.note_logs()

    def _records(self) -> list[dict[str, Any]]:
        """Return the records that this node's processes of this attempt have written."""
        return [record for record in self.directory.read_ranks() if record["attempt"] == self.attempt]

    def _update(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a process's record, marked as failed if the process is gone and has not written its end."""
        rank = int(record["rank"])
        if record["state"] != "running":
            return record
        if processes.alive(int(record["pid"])):
            self._alive_at[rank] = time.time()
            return record
        # It may have written its end since the record was read.
        now = next((one for one in self._records() if one["rank"] == rank), record)
        if now["state"] != "running":
            return now
        last_alive = self._alive_at.get(rank, float(record["time"]))
        return {**record, "state": "failed", "error": GONE, "time": last_alive}

    def _read_to_the_end(self, ranks: list[dict[str, Any]]) -> None:
        """Read the processes' last lines now: the master reads no more once it knows that they ended."""
        with contextlib.suppress(Exception):  # to watch a job must never end it
            self._watch.update(ranks)

    @staticmethod
    def _described(record: dict[str, Any], log: list[str]) -> dict[str, Any]:
        # Lines from the log are for display only: other processes write there too.
        rank, lines = int(record["rank"]), record["lines"] or lines_of(int(record["rank"]), log)
        return {"rank": rank, "error": str(record["error"]), "time": record["time"], "lines": lines}
