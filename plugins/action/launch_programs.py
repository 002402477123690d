# SPDX-License-Identifier: GPL-3.0-or-later
"""See that a program of launchers is the same on all hosts; see plugins/modules/launch_programs.py."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.modules.launch_programs import ARGUMENT_SPEC
from ansible_collections.rdm.provision.plugins.plugin_utils.launch_programs import judge
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Refused, sentences
from ansible_collections.rdm.provision.plugins.plugin_utils.registered import registered


class ActionModule(ActionBase):
    """The action: collects and judges; it talks to no node."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the versions, or the refusal."""
        variables: dict[str, Any] = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _, options = self.validate_argument_spec(ARGUMENT_SPEC)
        found = {}
        for name in options["looked"]:
            for host, answer in registered(name, variables).items():
                if "programs" in answer:
                    found[host] = answer["programs"][options["program"]]
        problems, warnings = judge(options["program"], found)
        result["changed"] = False
        if problems:
            result.update(Refused(problems, before="a job was started").result("nodes"))
        else:
            versions = {host: one["version"] for host, one in found.items() if one["version"]}
            result.update(versions=versions, warnings=sentences(warnings))
        return result
