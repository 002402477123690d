# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which nodes and roles have work; see plugins/modules/work.py."""

from __future__ import annotations

from typing import Any

from ansible import context
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.node import with_strays
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.work import BUNDLED, decide
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the work of each node."""
        gathered = registered(options["facts"], variables)
        found = {host: one["node"] for host, one in gathered.items() if isinstance(one.get("node"), dict)}
        state_files = options["state_files"]
        bare = [host for host in found if state_files[host]["bare"]]
        engineless = [host for host, node in found.items() if not node["docker"] and host not in bare]
        parts = [*(variables.get("ansible_run_tags") or ["all"]), *(variables.get("ansible_skip_tags") or [])]
        whole = parts == ["all"] and not context.CLIARGS.get("step")
        work = decide(
            {host: with_strays(node, state_files[host]["repairs"]) for host, node in found.items()},
            {
                host: [*([] if host in bare else ["docker_engine"]), *state_files[host]["inputs"]]
                for host in found
            },
            {host: state_files[host]["absent"] for host in found},
            recheck=options["recheck"],
            engineless=engineless if self._task.check_mode else (),
            bundled=BUNDLED if whole else (),
        )
        if not whole or self._task.check_mode:
            # The skipped parts of the run may not be in their desired state.
            work.plays["state_file"] = []
        # The call that writes the state file also releases the node's lock.
        released = set(work.why) if whole and not bare else set()
        locked = [host for host in found if host in work.why or state_files[host]["absent"]]
        work.plays["release"] = (
            [] if self._task.check_mode else [one for one in locked if one not in released]
        )
        if bare:
            # A bare host has no container to measure the fabric from, and no engine for a state file to
            # observe.
            work.plays["state_file"] = work.plays["verify"] = []
        return work._asdict()
