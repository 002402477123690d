# SPDX-License-Identifier: GPL-3.0-or-later
"""Lock all nodes of a play against other runs, or refuse; see plugins/modules/locked_nodes.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.constants import PLAN_FILE
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import (
    PlanFileError,
    read_plan,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.existing import (
    authority_problem,
    lock_problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import node_locks
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys


class ActionModule(Decision):
    """The action; it takes the locks, or releases them."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return nothing, or the precondition failure."""
        cluster, config_dir = options["cluster"], options["config_dir"]
        wanted = {} if self._task.check_mode else node_locks.of_run(variables, cluster)
        nodes = [str(host) for host in variables["ansible_play_hosts"]]
        locks = node_locks.NodeLocks(
            self,
            variables,
            wanted or {"cluster": cluster, "run": "", "home": "", "leader": {}},
            options["connections"],
            options["root"],
            config_dir,
        )
        if options["state"] == "free":
            if wanted:
                locks.release(nodes)
            return {}
        found: dict[str, dict[str, Any]] = {}
        if wanted:
            found = locks.take(nodes)
        elif config_dir:
            locks.gather(nodes)
        problems = [lock_problem(node, holder) for node, holder in found.items() if holder]
        problems += _others(locks.authorities, options, str(variables.get("inventory_dir") or ""))
        if problems:
            # The problems are in the order in which the nodes answered.
            problems.sort(key=lambda problem: nodes.index(str(problem.node)))
            locks.release(node for node, holder in found.items() if not holder)
            raise PreconditionFailed(problems)
        return {}


def _others(authorities: Mapping[str, str], options: Mapping[str, Any], inventory: str) -> Iterator[Problem]:
    """Yield a problem for each node whose cluster was made from another inventory."""
    keys, known = None, None
    # If the keys or the plan cannot be read, the other can still show that the cluster is ours.
    with contextlib.suppress(PreconditionFailed):
        keys = cluster_keys.read(cluster_keys.directory_of(options["keys"], inventory))
    with contextlib.suppress(PlanFileError):
        known = read_plan(os.path.join(inventory, PLAN_FILE))
    ours = keys.fingerprints[cluster_keys.AUTHORITY] if keys else ""
    mine = {ours, *((known.keys.get(cluster_keys.AUTHORITY, ""), *known.replaced) if known else ())}
    what = f"the cluster {options['cluster']} in {options['config_dir']}"
    for node, authority in authorities.items():
        if authority not in mine and not options["new_keys"]:
            yield authority_problem(node, what, authority, ours)
