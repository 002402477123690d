# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a lab on this machine, or take it away; see plugins/modules/lab.py."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.rdm.provision.plugins.modules.lab import DOCUMENTATION
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import (
    Decision,
    documented_options,
)
from ansible_collections.rdm.provision.rdm_lab import lab
from ansible_collections.rdm.provision.rdm_lab.client import clear, connect
from ansible_collections.rdm.provision.rdm_lab.engine import LabEngine
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem


class ActionModule(Decision):
    """The action: all of a lab is made by this machine's engine."""

    ARGUMENTS = documented_options(DOCUMENTATION)
    REQUIRED_IF = (
        ("state", "present", ("directory", "node_image", "archives")),
        ("hardware", "vm", ("machine_image", "machine")),
    )

    def decide(self, options: dict[str, Any], _variables: dict[str, Any]) -> dict[str, Any]:
        """Bring the lab into its state; return what was done, or why it cannot be."""
        # Without what Ansible remembers of each value: they are written into files.
        options = json.loads(json.dumps(options))
        state = lab.present if options["state"] == "present" else lab.absent
        try:
            with clear():
                return state(LabEngine(connect(), options["name"]), options, self._task.check_mode)
        except (LabProblem, OSError) as problem:
            return {"failed": True, "msg": str(problem)}
