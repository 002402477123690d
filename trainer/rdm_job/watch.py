# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's agent observes of its part of a job: new log lines, its ranks' progress, the node's state.

The master's agent combines all nodes' reports; see ``health``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_core import heartbeat
from rdm_core.config import JobConfig, workload_of
from rdm_core.progress import thin as thinned
from rdm_job import measure, metrics, processes
from rdm_job.devices import Sampler, line
from rdm_job.directory import JobDirectory
from rdm_job.info import ARGUMENTS
from rdm_job.outlet import Outlet, file_of
from rdm_job.protocol import Request
from rdm_job.rotation import end_of, lines_from, rotate
from rdm_job.thinning import thin
from rdm_job.versions import versions
from rdm_log import peers, rank_timers, samples, signs
from rdm_log.errors import Findings
from rdm_log.figures import Sample
from rdm_log.heads import HEAD, info_of, vocabulary_of
from rdm_log.records import Checkpoint, EngineStep, Evaluation, Memory, Milestone, Step, Throughput
from rdm_log.runs import Run, add_record, with_engine
from rdm_log.scan import records
from rdm_log.summary import plain, progress

_POLL_S = 1.0
"""How often logs and ranks are polled, in seconds."""
SAMPLE_S = 5.0
"""How often the node is measured, and its `.gpu` log written."""
_AT_ONCE = 256 * 1024
"""How many bytes of a log are read at a time, so that a flood of errors does not block the agent."""
_BEHIND = 64 * 1024 * 1024
"""If more bytes of a log than this are unread, reading skips to its end."""
_MOST_FINDINGS = 8
_HEARTBEATS = 64
_LATELY = 8
"""How many of a rank's last heartbeats count as recent."""
_TIMES = 4096
_MOVES = (Checkpoint, EngineStep, Evaluation, Memory, Milestone, Step, Throughput)
"""Log lines that show that training advances."""
# The keys of a run's summary that a verdict needs.
_OF_RUN = (
    *("lines", "first_iteration", "last_iteration", "train_iterations", "loss", "step_ms", "skipped", "nan"),
    *("milestones",),
)


class Watch:
    """Watches one node's part of a job. One thread updates it; others may begin an attempt and read it."""

    def __init__(self, directory: JobDirectory, request: Request, config: JobConfig) -> None:
        self._directory, self._request, self._config = directory, request, config
        self._slots = request.own.slots
        self._first_rank = sum(node.slots for node in request.nodes[: request.node_rank])
        self._workload = workload_of(config)
        self._interval, whole = self._workload.checkpoints(config)
        self._whole_bytes = whole if self._interval else 0
        self._sampler = Sampler(request.accelerator)
        # Empty without accelerators: then there is nothing to watch.
        self._unwatched = self._note = self._sampler.missing
        self._versions = _versions(directory.resolved)
        self._samples: deque[samples.Sample] = deque(maxlen=int(signs.WINDOW_S / SAMPLE_S))
        self._outlet = Outlet(config.logging, file_of(directory.path, request.node), request.own.address)
        self.gpu: list[str] = []
        self._report: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._over: threading.Event | None = None
        self._next: list[_Tail] = []
        self.begin()

    def note_logs(self) -> None:
        """Note that the logs of the next attempt begin here, which may be before ``begin``."""
        self._next = [_Tail(self._directory.log(self._request.node, stream)) for stream in ("out", "err")]

    def begin(self) -> None:
        """Begin an attempt: earlier log lines no longer matter."""
        with self._lock:
            self._begin()

    def _begin(self) -> None:
        self._report = {}
        if not self._next:
            self.note_logs()
        (self._out, self._err), self._next = self._next, []
        self._findings = Findings(self._first_rank)
        self._head, self._info = b"", dict[str, str]()
        self._vocabulary: int | None = None
        self._shapes: dict[int, dict[str, str]] = {}
        self._run = Run(times=Sample(_TIMES))
        self._plain: dict[str, Any] | None = None
        self._progress: dict[str, Any] = {}
        self._phase = ""
        self._advanced_at = time.monotonic()
        self._begun_at = time.time()
        self._heartbeats: dict[int, deque[dict[str, Any]]] = {}
        self._before: dict[int, Mapping[str, float]] = {}
        # By now all agents are running. The checkpoints of nodes that share a disk must fit on it together.
        slots = {node.name: node.slots for node in self._request.nodes}
        here = {self._request.node, *self._directory.sharing}.intersection(slots)
        self._checkpoint_bytes = self._whole_bytes * sum(slots[name] for name in here) // sum(slots.values())

    def start_polling(self, ranks: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """Poll and measure until the end, in a thread of its own because a vendor's library may be slow.

        Args:
            ranks: Returns the records of this attempt's processes here.
        """
        if self._over is None:
            self._over = threading.Event()
            threading.Thread(target=self._poll, args=(ranks, self._over), daemon=True).start()

    def _poll(self, ranks: Callable[[], Sequence[Mapping[str, Any]]], over: threading.Event) -> None:
        measured, last_error = -SAMPLE_S, ""
        while True:
            try:
                records = ranks()
                if time.monotonic() - measured >= SAMPLE_S:
                    measured = time.monotonic()
                    self.measure(records)
                self.update(records)
            except Exception as error:  # what cannot be read now may be later
                if repr(error) != last_error:
                    last_error = repr(error)
                    traceback.print_exc()
            if over.wait(_POLL_S):
                return

    def report(self) -> dict[str, Any]:
        """Return the report for the master; see ``health.observed``."""
        return self._report

    def update(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Read new log lines and the ranks' progress."""
        with self._lock:
            self._update(ranks)

    def _update(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        self._read_out()
        for text in self._err.lines():
            self._findings.add(f"{text}\n")
        shown = self._ranks(ranks)
        progress = self._directory.progress()
        reports_progress = float(progress.get("time") or 0) >= self._begun_at
        self._report = {
            "versions": self._versions,
            "findings": [one.to_json() for one in self._findings.found() if one.kind == "error"][
                :_MOST_FINDINGS
            ],
            "run": self._plain,
            "progress": self._progress and {**self._progress, "phase": self._phase or "training"},
            "since_s": self._since(progress if reports_progress else {}),
            "phase": (str(progress.get("phase") or "") if reports_progress else self._phase),
            "reports_phases": reports_progress,
            "ranks": shown,
            "signs": [one.to_json() for one in self._signs(progress if reports_progress else {}, shown)],
            "unwatched": self._unwatched,
            "held_back": signs.held_back(self._samples),
            "quota": self._samples[-1].quota if self._samples else None,
            "gpu_processes": self._gpu_processes(),
            "arguments": self._arguments(ranks),
            "vocabulary": self._vocabulary,
        }

    def measure(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Measure the node, and write its ``.gpu`` logs."""
        pids = {int(one["rank"]): int(one["pid"]) for one in ranks if one["state"] == "running"}
        devices = self._devices(min(pids.values(), default=None))
        now = time.time()
        sample = measure.measure(now, self._directory.path, pids, devices)
        self._samples.append(sample)
        shown = devices
        if not shown and self._request.accelerator == "cpu":
            shown = (self._sampler.processors(processes.of_job(self._request.job_id)),)
        self.gpu = [line(device) for device in shown]
        note, self._note = self._note, ""
        stream = {**sample.to_json(), "node": self._request.node, **({"note": note} if note else {})}
        stream["devices"] = [device.to_json() for device in shown]
        for name, text in (
            ("gpu", "".join(f"{text}\n" for text in self.gpu)),
            ("gpu.jsonl", json.dumps(stream) + "\n"),
        ):
            path = self._directory.log(self._request.node, name)
            with contextlib.suppress(OSError), path.open("a") as file:
                file.write(text)
            thin(path)
        logging = self._config.logging
        for name in ("out", "err"):
            path = self._directory.log(self._request.node, name)
            rotate(path, logging.rotate_mebibytes * 1024 * 1024, logging.rotate_keep)
        if self._outlet.is_open:
            self._publish_metrics(sample)

    def _devices(self, process: int | None) -> tuple[samples.Device, ...]:
        """Return the job's GPUs: of those that its processes see, one per process.

        A launcher may set the variables for visible devices itself, so the environment of a process counts.
        A user's own program may use several GPUs per process: further GPUs with its processes are added. If
        the driver shows no processes, or those of another namespace, as in a container, return all GPUs
        that the job's processes see.
        """
        seen = self._sampler.devices(None if process is None else processes.environment_of(process))
        own, others = seen[: self._slots], seen[self._slots :]
        if not others or self._workload.reports_progress:
            return own
        ours = set(processes.of_job(self._request.job_id))
        shown = {process for one in seen for process in one.processes}
        if ours.isdisjoint(shown) and not (shown and all(map(processes.alive, shown))):
            return seen
        return (*own, *(one for one in others if not ours.isdisjoint(one.processes)))

    def _publish_metrics(self, sample: samples.Sample) -> None:
        text = metrics.of_node(self._request.name, self._request.node, sample)
        if self._request.is_master:
            text = metrics.of_job(self._directory.read_state()) + text
        self._outlet.publish(text)

    def end(self) -> None:
        """Stop polling, and write the final metrics to Prometheus' file on the master; else remove the file.

        Otherwise the last measurements would be read as current for ever. The file is also removed if the
        state cannot be read.
        """
        if self._over is not None:
            self._over.set()
            self._over = None
        state = None
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            state = self._directory.read_state()
        is_known = self._request.is_master and state is not None and state.has_ended
        self._outlet.end(metrics.of_job(state) if state is not None and is_known else "")

    def _read_out(self) -> None:
        before = with_engine(self._run).lines, self._run
        block = self._out.block()
        if block and len(self._head) < HEAD:
            self._head += block[:HEAD]
            text = self._head.decode("utf-8", "replace")
            self._info, self._vocabulary = info_of(text), vocabulary_of(text)
        for record in records(iter([block])):
            self._run = add_record(self._run, record)
            if isinstance(record, _MOVES):
                self._advanced_at = time.monotonic()
                is_saving = isinstance(record, Checkpoint) and record.kind == "saving"
                self._phase = "saving" if is_saving else ""
        run = with_engine(self._run)
        if (run.lines, self._run) != before:
            found = plain(run)
            found["loss"]["curve"] = found["loss"]["curve"][-32:]
            self._plain = {key: found[key] for key in _OF_RUN}
            # Our trainer writes its own progress, with more detail.
            if run.lines and not self._workload.reports_progress:
                far = progress(run)
                self._progress = {**far, "losses": thinned(far["losses"]), "time": time.time()}

    def _arguments(self, ranks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return the processes' own view of their arguments, to compare with the request."""
        logged = {key: self._run.arguments[key] for key in ARGUMENTS if key in self._run.arguments}
        values_of: dict[str, set[str]] = {}
        for one in ranks:
            rank = int(one["rank"])
            if rank not in self._shapes and (shape := heartbeat.shape(self._directory.heartbeat(rank))):
                self._shapes[rank] = shape
            world = {"WORLD_SIZE": str(one["world"])} if one.get("world") else {}
            for key, value in {**self._shapes.get(rank, {}), **world}.items():
                values_of.setdefault(key, set()).add(value)
        # Different values show that a process was started by another launcher.
        return {
            **self._info,
            **logged,
            **{key: ", ".join(sorted(values)) for key, values in values_of.items()},
        }

    def _since(self, progress: Mapping[str, Any]) -> float:
        """Return the seconds since training last showed that it advances."""
        since = time.monotonic() - self._advanced_at
        if progress:
            since = min(since, max(0.0, time.time() - float(progress["time"])))
        return since

    def _ranks(self, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            shown
            for record in records
            if record["state"] == "running" and (shown := self._rank(int(record["rank"]), int(record["pid"])))
        ]

    def _rank(self, rank: int, process: int) -> dict[str, Any] | None:
        """Return a rank's heartbeat, for ``peers.RankHeartbeat``; None if it writes none."""
        try:
            record, iteration, since = heartbeat.read(self._directory.heartbeat(rank))
        except OSError:
            return None
        heartbeats = self._heartbeats.setdefault(rank, deque(maxlen=_HEARTBEATS))
        groups = heartbeat.collectives(self._directory.heartbeat(rank), iteration)
        is_of_attempt = record.get("compute_s") is not None and record["time"] >= self._begun_at
        if is_of_attempt and (not heartbeats or heartbeats[-1]["time"] != record["time"]):
            heartbeats.append(record)
        return {
            "rank": rank,
            "group": record.get("group", ""),
            "iteration": iteration,
            # A process that is stopped, or hangs in a file system, is not waiting for its peers.
            "waits": bool(since) and processes.condition(process) not in "TtD",
            **self._usual_of(rank, peers.usual(list(heartbeats))),
            "nan_at": record.get("nan_at"),
            "retries": sum(one.get("retries") or 0 for one in list(heartbeats)[-_LATELY:]),
            **({"collectives": groups} if groups else {}),
        }

    def _usual_of(self, rank: int, usual: Mapping[str, float]) -> dict[str, float]:
        if not usual:
            return {}
        before = self._before.setdefault(rank, usual)
        return {**usual, "before_s": before["compute_s"], "before_waited_s": before["waited_s"]}

    def _signs(self, progress: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> list[signs.Sign]:
        interval, step_s = self._interval, 0.0
        if self._plain is not None:
            step_s = (self._plain["step_ms"]["median"] or 0.0) / 1000
        elif heartbeats := [one for of_rank in self._heartbeats.values() for one in of_rank]:
            # This node logs no steps: a rank's step is its compute time plus its wait for others.
            step_s = statistics.median(
                float(one["compute_s"]) + (one.get("waited_s") or 0.0) for one in heartbeats
            )
        done = progress.get("iteration") or max((one["iteration"] - 1 for one in ranks), default=0)
        left = interval - max(0, int(done)) % interval if interval else 0
        return self._slow() + signs.of_node(
            self._request.node,
            list(self._samples),
            ranks=range(self._first_rank, self._first_rank + self._slots),
            checkpoint_s=left * step_s if self._checkpoint_bytes and step_s else None,
            checkpoint_bytes=self._checkpoint_bytes,
            whole_bytes=self._whole_bytes,
            is_saving=progress.get("phase") == "saving",
        )

    def _slow(self) -> list[signs.Sign]:
        """Return the ranks that compute longer than their peers, if the program logs every rank's timers."""
        layout = rank_timers.layout({**self._info, **self._run.arguments})
        compute = self._run.compute_ms
        if not compute or layout is None:
            return []
        names = (node.name for node in self._request.ranks)
        return rank_timers.slow(compute, *layout, dict(enumerate(names)))

    def _gpu_processes(self) -> int | None:
        """Return how many of the GPUs are in use; None if that is not known."""
        devices = self._samples[-1].devices if self._samples else ()
        if not devices or self._request.accelerator == "cpu":
            return None
        return sum(one.is_in_use for one in devices)


class _Tail:
    """Reads the lines that are added to a log from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = end_of(path)

    def block(self) -> bytes:
        """Return new whole lines, at most ``_AT_ONCE`` bytes of them."""
        try:
            end = end_of(self._path)
            if end - self._offset > _BEHIND:
                self._offset = end - _AT_ONCE
            data, self._offset = lines_from(self._path, self._offset, _AT_ONCE)
        except OSError:
            return b""
        return data

    def lines(self) -> list[str]:
        """Return the same, as lines."""
        return self.block().decode("utf-8", "replace").splitlines()


def _versions(resolved: Path) -> dict[str, str]:
    """Return the versions that must match on all nodes, with a digest of the configuration."""
    found = versions()
    with contextlib.suppress(OSError):
        found["configuration"] = hashlib.sha256(resolved.read_bytes()).hexdigest()[:8]
    return found
