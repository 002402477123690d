# SPDX-License-Identifier: GPL-3.0-or-later
"""Report which collectives this rank has entered when it hangs, from torch's flight recorders.

One records the last collectives of NCCL, the other those of Gloo; messages between two ranks only the former.
A thread reads them, because the process itself may wait in a collective until its timeout. It does not read
them while collectives end: until torch 2.13, that may read an event that is freed at the same moment
(pytorch/pytorch#192232).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from rdm_core.heartbeat import HeartbeatWriter
from rdm_log.peers import GroupState

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Functions of torch that return the entries; a build without NCCL has only the first."""
_ENTRIES = "2000"
"""How many entries torch keeps, its own default for NCCL."""
_EACH_S = 5.0
_HUNG_S = 10.0
"""A rank reports when it has neither begun a step nor ended a wait for others for this many seconds."""


def enable() -> None:
    """Let torch record collectives; takes effect before the first process group is created."""
    # Torch reads the older name only where the newer one is not set.
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", _ENTRIES)


class FlightRecorder:
    """Writes the state of this rank's process groups beside its heartbeat as long as it hangs.

    Args:
        heartbeat: The rank's heartbeat. Without a path, this does nothing.
        kinds: What groups are for, such as ``data-parallel``.
        log: Logs a line.
    """

    def __init__(
        self, heartbeat: HeartbeatWriter, kinds: Mapping[str, Any], log: Callable[[str], None]
    ) -> None:
        self._heartbeat = heartbeat
        self._log = log
        self._kinds = {group: kind for kind, group in kinds.items() if group is not None}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if heartbeat.is_active:
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_EACH_S)

    def _run(self) -> None:
        progress, since, has_reported = self._progress, time.monotonic(), False
        while not self._closed.wait(_EACH_S):
            if progress != self._progress:
                progress, since = self._progress, time.monotonic()
                if has_reported:
                    # It goes on in the same step.
                    self._heartbeat.hung([])
                    has_reported = False
            elif time.monotonic() - since >= _HUNG_S:
                try:
                    found = self.states()
                except Exception as error:  # Torch publishes none of what this reads.
                    self._log(
                        f"the flight recorder of torch {torch.__version__} cannot be read, so that the "
                        f"collective in which a rank hangs is not known: {type(error).__name__}: {error}"
                    )
                    return
                self._heartbeat.hung(found)
                has_reported = True

    @property
    def _progress(self) -> tuple[int, float]:
        """What stays the same as long as this rank hangs: its step, and how long its ended waits took."""
        return self._heartbeat.iteration, self._heartbeat.waited

    def states(self) -> list[GroupState]:
        """Return the state of each group of this rank with several ranks."""
        module = torch._C._distributed_c10d
        dumps = [getattr(module, name) for name in _DUMPS if hasattr(module, name)]
        if not dumps:
            raise AttributeError(f"{module.__name__} has no {' or '.join(_DUMPS)}")
        entries = [entry for dump in dumps for entry in json.loads(dump()).get("entries", ())]
        groups: dict[str, tuple[int, int, str]] = {}
        for group in list(dist.distributed_c10d._world.pg_map):
            ranks = dist.get_process_group_ranks(group)
            if len(ranks) > 1:
                groups[group.group_name] = (min(ranks), len(ranks), self._kinds.get(group, ""))
        return states(entries, groups)


def states(
    entries: Iterable[Mapping[str, Any]], groups: Mapping[str, tuple[int, int, str]]
) -> list[GroupState]:
    """Return the state of each group from the flight recorder's entries.

    Args:
        entries: The entries, those of each group from the oldest on.
        groups: The first rank, the size and the kind of each group, by its name in torch.
    """
    found = {name: GroupState(name, *of_group, entered=0) for name, of_group in groups.items()}
    for entry in entries:
        name, number = entry["process_group"][0], int(entry["collective_seq_id"])
        state = found.get(name)
        if state is None or entry["is_p2p"]:
            continue
        state = state._replace(entered=number)
        if not entry["retired"] and not state.waits:
            operation = str(entry["profiling_name"]).rpartition(":")[2]
            state = state._replace(waits=number, operation=operation, since=entry["time_created_ns"] / 1e9)
        found[name] = state
    return list(found.values())
