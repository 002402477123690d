# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the images that a lab needs; see plugins/modules/lab_images.py."""

from __future__ import annotations

import os
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

MMDEBSTRAP = {
    "name": ["mmdebstrap", "debian-archive-keyring"],
    "update_cache": True,
    "install_recommends": False,
}


class ActionModule(Decision):
    """The action: images are made on this machine."""

    ARGUMENTS = documented_options(DOCUMENTATION)
    REQUIRED_IF = (("state", "present", ("files",)),)

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Make or remove the images; return what they are called, or why they cannot be made."""
        clean_up_when_told_to_end()
        check, cache = self._task.check_mode, images.cache_directory(options["cache"])
        try:
            with clear():
                if options["state"] == "absent":
                    return {"changed": images.remove(connect(), cache, check)}
                wanted = images.wanted(connect(), options, cache)
                if check or not wanted.missing:
                    return {"changed": bool(wanted.missing), **wanted.names}
                if options["source"] != "registry" and wanted.lacks_mmdebstrap() and os.geteuid() == 0:
                    installed = self._execute_module("ansible.builtin.apt", MMDEBSTRAP, task_vars=variables)
                    if installed.get("failed"):
                        return dict(installed)
                return {"changed": wanted.make(cache), **wanted.names}
        except (LabProblem, OSError) as problem:
            return {"failed": True, "msg": str(problem)}
