# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the images that a lab needs; see plugins/modules/lab_images.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.modules.lab_images import DOCUMENTATION
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import (
    Decision,
    documented_options,
)
from ansible_collections.rdm.provision.rdm_lab import images
from ansible_collections.rdm.provision.rdm_lab.client import clear, connect
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.work import clean_up_when_told_to_end


class ActionModule(Decision):
    """The action: images are made on this machine."""

    ARGUMENTS = documented_options(DOCUMENTATION)
    REQUIRED_IF = (("state", "present", ("files",)),)

    def decide(self, options: dict[str, Any], _variables: dict[str, Any]) -> dict[str, Any]:
        """Make or remove the images; return what they are, or why they cannot be made."""
        clean_up_when_told_to_end()
        check = self._task.check_mode
        try:
            with clear():
                if options["state"] == "present":
                    return images.present(connect(), options, check)
                cache = images.cache_directory(options["cache"])
                return {"changed": images.remove(connect(), cache, check)}
        except (LabProblem, OSError) as problem:
            return {"failed": True, "msg": str(problem)}
