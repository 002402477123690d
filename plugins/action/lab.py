# SPDX-License-Identifier: GPL-3.0-or-later
"""Create a lab on this machine, or remove it; see plugins/modules/lab.py."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.rdm_lab import images, lab
from ansible_collections.rdm.provision.rdm_lab.client import clear, connect
from ansible_collections.rdm.provision.rdm_lab.engine import LabEngine
from ansible_collections.rdm.provision.rdm_lab.spec import LabProblem
from ansible_collections.rdm.provision.rdm_lab.work import unwinding

COLLECTION = role_specs.ROLES.parent
MMDEBSTRAP = {
    "name": ["mmdebstrap", "debian-archive-keyring"],
    "update_cache": True,
    "install_recommends": False,
}


class ActionModule(Decision):
    """The action; a lab runs on this machine and its engine."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Bring the lab into its desired state; return what was done, or why it failed."""
        # Plain values without Ansible's tags, since they are written into files.
        given = json.loads(json.dumps(options["desired"]))
        try:
            desired = {name: _typed(name, value) for name, value in given.items()}
            with clear():
                engine = LabEngine(connect(), desired["lab_name"])
                make = self._present if desired["lab_state"] == "present" else self._absent
                return make(engine, desired, variables)
        except (LabProblem, OSError) as problem:
            return {"failed": True, "msg": str(problem)}

    def _present(
        self, engine: LabEngine, desired: Mapping[str, Any], variables: dict[str, Any]
    ) -> dict[str, Any]:
        check, cache = self._task.check_mode, images.cache_directory(desired["lab_cache"])
        parts = images.wanted(engine.docker, desired, COLLECTION, cache)
        actions = ["make the images"] if parts.missing else []
        if actions and not check:
            from_packages = desired["lab_image_source"] != "registry"
            if from_packages and parts.lacks_mmdebstrap() and os.geteuid() == 0:
                installed = self._execute_module("ansible.builtin.apt", MMDEBSTRAP, task_vars=variables)
                if installed.get("failed"):
                    return dict(installed)
            with unwinding():
                parts.make(cache)
        made = lab.present(engine, desired, parts.names, _directory(desired), check)
        actions += made["actions"]
        return {**made, "actions": actions, "changed": bool(actions)}

    def _absent(self, engine: LabEngine, desired: Mapping[str, Any], _: dict[str, Any]) -> dict[str, Any]:
        check, cache = self._task.check_mode, images.cache_directory(desired["lab_cache"])
        gone = lab.absent(engine, _directory(desired), check)
        purged = desired["lab_purge"] and images.remove(engine.docker, cache, check)
        return {**gone, "changed": gone["changed"] or purged}


def _typed(name: str, value: Any) -> Any:
    """Return a variable with the type of the role's argument_specs; unknown variables are unchanged."""
    typed, wrong = role_specs.typed(name, value)
    if wrong:
        raise LabProblem(f"{name} {value!r}: {wrong[0]}")
    return typed


def _directory(desired: Mapping[str, Any]) -> Path:
    """Return the directory of the lab's inventory."""
    here = os.environ.get("PWD") or os.getcwd()
    given = desired["lab_directory"] or os.path.join(here, "inventory", desired["lab_name"])
    return Path(os.path.expandvars(given)).expanduser().absolute()
