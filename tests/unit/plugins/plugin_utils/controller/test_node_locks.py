"""The other holders of nodes' locks, before any node is called."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import Leader
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_locks import NodeLocks


def test_run_is_not_blocked_by_its_own_locks() -> None:
    leader = Leader.here("rdm-provision env up")._asdict()
    wanted = {"cluster": "c", "run": "mine", "home": "here", "leader": leader}
    action: Any = None
    locks = NodeLocks(action, {"ansible_forks": 1}, wanted, [])
    other = {"run": "other", "leader": leader}
    assert locks.take((), {"n1": {"run": "mine", "leader": leader}, "n2": other}) == {"n2": other}
