"""The log of a run, beside the inventory: ``.rdm/runs/<time>-<verb>/``. The newest twenty are kept.

``events.jsonl`` has a line per event worth keeping, with at most 64 KiB of each file's diff; ``result.json``
has the result (both are compact for many nodes); ``command`` what was run; and ``ansible.log`` what
ansible-playbook printed if the run failed. Git and Ansible ignore the folder.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import IO

from rdm_provision.results.compact import FEW_NODES, compact, cut_files, without_repeats
from rdm_provision.results.events import (
    Event,
    NodeResult,
    NodeStarted,
    Output,
    RunFinished,
    RunResult,
    RunStarted,
    Status,
    to_json,
)
from rdm_provision.runner.lock import cluster_lock_module

KEEP = 20
"""How many records are kept."""

_DIFF_LIMIT = 64 * 1024
"""Characters of one file's diff."""


class Record:
    """The log of one run. If the folder cannot be written to, there is no log."""

    def __init__(self, home: Path | None, verb: str, command: str) -> None:
        """Begin a record.

        Args:
            home: the folder of the inventory; None to keep no record.
            verb: what is run.
            command: the command line, without secrets.
        """
        self.folder: Path | None = None
        self._events: IO[str] | None = None
        self._nodes = 0
        self._seen: dict[str, str] = {}
        if home is None:
            return
        with contextlib.suppress(OSError):
            runs = cluster_lock_module().state_folder(home) / "runs"
            runs.mkdir(exist_ok=True)
            self.folder = _fresh(runs, verb.replace(" ", "-"))
            (self.folder / "command").write_text(command + "\n", encoding="utf-8")
            self._events = (self.folder / "events.jsonl").open("w", encoding="utf-8", buffering=1)
            _prune(runs)

    def add(self, event: Event) -> None:
        """Write an event, unless it says only that nothing happened."""
        if self._events is None or isinstance(event, (NodeStarted, Output, RunFinished)):
            return
        if isinstance(event, NodeResult) and event.status in (Status.OK, Status.SKIPPED):
            return
        data = to_json(event)
        if isinstance(event, RunStarted):
            self._nodes = len(event.nodes)
        if isinstance(event, NodeResult):
            # Cut before comparing, so that later nodes refer to what the log has.
            data["diff"] = cut_files(event.diff, _DIFF_LIMIT)
            if self._nodes > FEW_NODES:
                data["diff"] = without_repeats(data["diff"], event.node, self._seen)
        with contextlib.suppress(OSError):
            self._events.write(json.dumps(data, separators=(",", ":")) + "\n")

    def finish(self, result: RunResult, log: Path | None, hidden: Collection[str] = ()) -> None:
        """Close the record.

        Args:
            result: of the run.
            log: what ansible-playbook printed; a copy is kept when the run did not end well.
            hidden: ``NAME=value`` pairs whose values the copy does not have.
        """
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            if self._events is not None:
                self._events.close()
            text = json.dumps(compact(result.to_json()), indent=1) + "\n"
            (self.folder / "result.json").write_text(text, encoding="utf-8")
            if log is not None and log.is_file() and not result.ok:
                (self.folder / "ansible.log").write_text(_without(hidden, log), encoding="utf-8")


def _without(hidden: Collection[str], log: Path) -> str:
    """Return what a log holds, without the values of some ``NAME=value`` pairs."""
    text = log.read_text(encoding="utf-8", errors="replace")
    # The longest first: one value may begin like another.
    for pair in sorted(hidden, key=len, reverse=True):
        name, _, value = pair.partition("=")
        if value:
            for form in {pair, json.dumps(pair)[1:-1], json.dumps(pair, ensure_ascii=False)[1:-1]}:
                text = text.replace(form, f"{name}=(hidden)")
    return text


def _fresh(runs: Path, verb: str) -> Path:
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    for number in range(1, 1000):
        folder = runs / (f"{stamp}-{verb}" if number == 1 else f"{stamp}-{verb}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(runs / stamp)


def _prune(runs: Path) -> None:
    for old in sorted(entry for entry in runs.iterdir() if entry.is_dir())[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
