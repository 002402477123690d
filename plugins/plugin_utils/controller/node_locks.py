# SPDX-License-Identifier: GPL-3.0-or-later
"""The locks of a run on its nodes: which run wants them, who else holds one, and taking or releasing many.

A lock is taken by the call that looks at a node, where that finds work, and released by the last one.
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
    """Return which run wants the locks of a cluster, as node_lock.ARGUMENTS has it; empty where none may.

    A run that does not hold the lock beside its inventory changes nothing.

    Args:
        variables: of a host.
        cluster: the cluster's name.
    """
    for home in cluster_lock.homes(variables):
        leader = cluster_lock.leader(home)
        if leader:
            return {
                "cluster": cluster,
                "run": _mark(*leader),
                "home": _mark(cluster_lock.place(), str(Path(home).resolve())),
                "leader": leader._asdict(),
            }
    return {}


def ended(holder: Mapping[str, Any]) -> bool:
    """Whether the run that holds a lock can be seen from here, and has ended."""
    leader = Leader.read(holder["leader"])
    return leader is not None and not leader.elsewhere and not leader.alive


class NodeLocks:
    """Takes and releases the locks of a run on many nodes, in threads.

    Args:
        action: the action whose task does it.
        variables: of that task.
        wanted: which run wants them, as of_run() returns it.
        connections: names of the connection plugins that work in threads. A node with another one is left
            out.
        root: whether root takes them whatever `rdm_become` says.
        config_dir: directory of the cluster's files on the nodes, to see where they come from.

    Attributes:
        authorities: node -> fingerprint of the authority of its cluster, where it has one.
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
        """Read whose cluster is on the nodes, and take no lock."""
        self._note(self._call(nodes, {"state": "seen", "config_dir": self._config_dir}))

    def take(
        self, nodes: Iterable[str], holders: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Take the locks, also of runs that have ended; return for each node who else holds it.

        Args:
            nodes: whose locks; those that do not answer are left out of what is returned.
            holders: who holds them, where that is known already.
        """
        found = {} if holders else self._take(nodes, ())
        # A lock that was taken before the facts were gathered is this run's own.
        others = {
            node: holder for node, holder in (holders or {}).items() if holder["run"] != self._wanted["run"]
        }
        found.update((node, dict(holder)) for node, holder in others.items())
        over = {node: holder["run"] for node, holder in found.items() if holder and ended(holder)}
        # A run that has ended blocks nobody, even if its lock cannot be read now.
        return {**found, **{node: {} for node in over}, **(self._take(over, over.values()) if over else {})}

    def release(self, nodes: Iterable[str]) -> None:
        """Release the locks. Of a node that does not answer, it lapses by itself."""
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
            # Whatever goes wrong here, the run goes on without a lock.
            with contextlib.suppress(Exception):
                assert self._executor is not None
                yield node, self._executor.call(self._executor.host(node), "rdm.provision.node_lock", options)


def _mark(*what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
