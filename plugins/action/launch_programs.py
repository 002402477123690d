# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that a launcher's program is the same on all hosts; see plugins/modules/launch_programs.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    sentences,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.launch_programs import evaluate


class ActionModule(Decision):
    """The action; it works on the controller only."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the versions, or the precondition failure."""
        found = {}
        for name in options["gathered"]:
            for host, answer in registered(name, variables).items():
                if "programs" in answer:
                    found[host] = answer["programs"][options["program"]]
        problems, warnings = evaluate(options["program"], found)
        if problems:
            raise PreconditionFailed(problems, before="a job was started")
        versions = {host: one["version"] for host, one in found.items() if one["version"]}
        return {"versions": versions, "warnings": sentences(warnings)}
