"""The log of a run, beside the inventory: ``.rdm/runs/<time>-<verb>/``, the newest twenty kept.

``events.jsonl`` has one line per event worth keeping, ``result.json`` the result (of many nodes in a compact
form), ``command`` what was run, and ``ansible.log`` what ansible-playbook printed when the run did not end
well. Git and Ansible both ignore the folder.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import weakref
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import IO

from rdm_provision import environment
from rdm_provision.compact import compact
from rdm_provision.errors import ClusterBusyError
from rdm_provision.events import (
    Event,
    NodeResult,
    NodeStarted,
    Output,
    RunFinished,
    RunResult,
    Status,
    to_json,
)

__all__ = ["KEEP", "Lock", "Record"]

KEEP = 20
"""How many records stay."""

_DIFF_LIMIT = 64 * 1024


class Record:
    """The log of one run. A folder that cannot be written to makes no trouble: there is no log then."""

    def __init__(self, home: Path | None, verb: str, command: str) -> None:
        """Begin a record under the folder HOME (None: keep none)."""
        self.folder: Path | None = None
        self._events: IO[str] | None = None
        if home is None:
            return
        with contextlib.suppress(OSError):
            runs = _cluster_lock().state_folder(home) / "runs"
            runs.mkdir(exist_ok=True)
            self.folder = _fresh(runs, verb)
            (self.folder / "command").write_text(command + "\n", encoding="utf-8")
            self._events = (self.folder / "events.jsonl").open("w", encoding="utf-8", buffering=1)
            _prune(runs)

    def add(self, event: Event) -> None:
        """Write EVENT down, if it says more than that nothing happened."""
        if self._events is None or isinstance(event, (NodeStarted, Output, RunFinished)):
            return
        if isinstance(event, NodeResult) and event.status in (Status.OK, Status.SKIPPED):
            return
        data = to_json(event)
        if len(data.get("diff", "")) > _DIFF_LIMIT:
            data["diff"] = data["diff"][:_DIFF_LIMIT] + "\n(cut)\n"
        with contextlib.suppress(OSError):
            self._events.write(json.dumps(data, separators=(",", ":")) + "\n")

    def finish(self, result: RunResult, log: Path | None, hidden: Collection[str] = ()) -> None:
        """Close the record with RESULT, and a copy of ansible-playbook's LOG when it did not end well.

        The copy does not have the values of the ``NAME=value`` pairs in HIDDEN.
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
    """Return what LOG holds, without the values of the ``NAME=value`` pairs in HIDDEN."""
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


class Lock:
    """Only one run may change a cluster at a time; the kernel lets go of the lock when its holders die.

    Plain ansible-playbook takes the same lock. See ``plugins/plugin_utils/cluster_lock.py``.
    """

    def __init__(self, home: Path, verb: str) -> None:
        """Take the lock of the cluster in the folder HOME, after ending what a killed run has left of itself.

        Raises:
            ClusterBusyError: another run holds it.
        """
        cluster_lock = _cluster_lock()
        try:
            self._file: int | None = cluster_lock.take(home, f"rdm-provision {verb}")
        except cluster_lock.Busy as busy:
            raise ClusterBusyError(str(busy), hint=busy.hint) from None
        self._home = home
        _held.add(self)

    @property
    def held(self) -> bool:
        """Whether there is a lock: not where nothing can be written."""
        return self._file is not None

    def release(self) -> None:
        """Let go of the lock. Does nothing the second time."""
        if self._file is not None:
            self._file = None
            _held.discard(self)
            _cluster_lock().give_back(self._home)

    def forget(self) -> None:
        """Close the descriptor in a process that was forked: what a caller forks is no part of the run."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def _cluster_lock() -> ModuleType:
    """Return the collection's module."""
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils import cluster_lock

    return cluster_lock
