# SPDX-License-Identifier: GPL-3.0-or-later
"""Take and release the locks of a run on its nodes.

`node_facts` takes a node's lock when it finds work there, and the last call of the run releases it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    RemoteExecutor,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import Leader
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.query_results import sort
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import run_all

_LIMIT_S = 60.0


def of_run(variables: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """Return this run as the holder of a cluster's locks, as in node_lock.ARGUMENTS; empty if it takes none.

    A run that does not hold the lock next to its inventory changes nothing.
    """
    for home in cluster_lock.homes(variables):
        leader = cluster_lock.leader(home)
        if leader:
            return {
                "cluster": cluster,
                "run": _mark(*leader),
                "home": _mark(cluster_lock.process_space(), str(Path(home).resolve())),
                "leader": leader._asdict(),
            }
    return {}


def ended(holder: Mapping[str, Any]) -> bool:
    """Return whether the run that holds a lock was on this machine and has ended."""
    leader = Leader.read(holder["leader"])
    return leader is not None and not leader.elsewhere and not leader.alive


class NodeLocks:
    """Takes and releases the locks of a run on many nodes, in threads.

    Args:
        action: the action of the task.
        variables: of that task.
        wanted: what of_run() returned.
        connections: names of the connection plugins that work in threads; nodes with another one are left
            out.
        root: whether to become root whatever `rdm_become` says.
        config_dir: directory of the cluster's files on the nodes, to find out their origin.

    Attributes:
        authorities: node -> fingerprint of its cluster's ssh authority, if it has one.
    """

    def __init__(
        self,
        action: ActionBase,
        variables: Mapping[str, Any],
        wanted: Mapping[str, Any],
        connections: Sequence[str],
        root: bool = False,
        config_dir: str = "",
    ) -> None:
        self._executor = RemoteExecutor(action, variables, connections, root) if connections else None
        self._threads = max(1, int(variables["ansible_forks"]))
        self._wanted = wanted
        self._config_dir = config_dir
        self.authorities: dict[str, str] = {}

    def gather(self, nodes: Iterable[str]) -> None:
        """Read the origin of the nodes' clusters, without taking locks."""
        self._note(self._call(nodes, {"state": "seen", "config_dir": self._config_dir}))

    def take(
        self, nodes: Iterable[str], holders: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Take the locks, even from runs that have ended; return the other holder of each node's lock.

        Args:
            nodes: the nodes; those that do not answer are left out of the result.
            holders: node -> the holder of its lock, if that is known already.
        """
        found = {} if holders else self._take(nodes, ())
        # This run took its own locks when it gathered facts.
        others = {
            node: holder for node, holder in (holders or {}).items() if holder["run"] != self._wanted["run"]
        }
        found.update((node, dict(holder)) for node, holder in others.items())
        over = {node: holder["run"] for node, holder in found.items() if holder and ended(holder)}
        # A run that has ended blocks no other, even if its lock cannot be taken now.
        return {**found, **{node: {} for node in over}, **(self._take(over, over.values()) if over else {})}

    def release(self, nodes: Iterable[str]) -> None:
        """Release the locks; the lock of a node that does not answer expires."""
        self._call(nodes, {"state": "free"})

    def _take(self, nodes: Iterable[str], over: Iterable[str]) -> dict[str, dict[str, Any]]:
        options = {"state": "held", "ended": sorted(set(over)), "config_dir": self._config_dir}
        answers = self._call(nodes, options)
        self._note(answers)
        return {node: answer["holder"] for node, answer in answers.items()}

    def _note(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        for node, answer in answers.items():
            if answer["origin"].get("authority"):
                self.authorities[node] = answer["origin"]["authority"]

    def _call(self, nodes: Iterable[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        calls = self._calls(nodes, {**options, "lock": self._wanted})
        return sort(run_all(calls, self._threads, _LIMIT_S), _LIMIT_S).answers

    def _calls(
        self, nodes: Iterable[str], options: Mapping[str, Any]
    ) -> Iterator[tuple[str, Callable[[], Any]]]:
        for node in nodes if self._executor else ():
            # If this fails, the run continues without the lock.
            with contextlib.suppress(Exception):
                assert self._executor is not None
                yield node, self._executor.call(self._executor.host(node), "rdm.provision.node_lock", options)


def _mark(*what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
