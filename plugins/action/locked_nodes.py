# SPDX-License-Identifier: GPL-3.0-or-later
"""Lock all nodes of a play against other runs, or refuse; see plugins/modules/locked_nodes.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.modules.locked_nodes import ARGUMENT_SPEC
from ansible_collections.rdm.provision.plugins.plugin_utils import node_locks
from ansible_collections.rdm.provision.plugins.plugin_utils.decision import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.existing_checks import lock_problem
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Refused


class ActionModule(Decision):
    """The action: takes the locks, or releases them."""

    ARGUMENTS = ARGUMENT_SPEC

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return nothing, or the refusal."""
        wanted = {} if self._task.check_mode else node_locks.of_run(variables, options["cluster"])
        if not wanted:
            return {}
        nodes = [str(host) for host in variables["ansible_play_hosts"]]
        locks = node_locks.NodeLocks(self, variables, wanted, options["connections"], options["root"])
        if options["state"] == "free":
            locks.release(nodes)
            return {}
        found = locks.take(nodes)
        if any(found.values()):
            locks.release(node for node, holder in found.items() if not holder)
            raise Refused(lock_problem(node, holder) for node, holder in found.items() if holder)
        return {}
