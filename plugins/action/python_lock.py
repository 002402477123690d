# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what the Python environments of bare hosts are made of; see plugins/modules/python_lock.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.rdm.provision.plugins.module_utils.constants import STATE_DIR
from ansible_collections.rdm.provision.plugins.modules.python_lock import ARGUMENT_SPEC
from ansible_collections.rdm.provision.plugins.plugin_utils import python_lock
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Refused

TRAINER = Path(__file__).resolve().parents[2] / "trainer"


class ActionModule(ActionBase):
    """The action: it works on the controller and talks to no node."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what environments are made of, or the refusal."""
        variables: dict[str, Any] = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        _, options = self.validate_argument_spec(ARGUMENT_SPEC)
        home = Path(str(variables.get("inventory_dir") or Path.cwd()))
        pins = (TRAINER / "requirements" / "runtime.txt").read_text(encoding="utf-8")
        sources = python_lock.Sources(
            index_url=options["index_url"],
            extra_index_urls=options["extra_index_urls"],
            find_links=[os.path.expanduser(one) for one in options["find_links"]],
            torch_backend=options["torch_backend"],
            proxy=options["proxy"],
        )
        try:
            text, changed = python_lock.lock(
                home / python_lock.LOCK_FILE,
                python_lock.requirements_of(pins, options["torch"]),
                options["python"],
                sources,
                write=not self._task.check_mode,
            )
            wheel = python_lock.trainer_wheel(TRAINER, home / STATE_DIR / "wheels")
            uv = python_lock.find_uv()
        except Refused as refused:
            return {**result, **refused.result("inventory")}
        program = f"{wheel.name} {wheel.parent.name}"
        # A file on the controller is no change of a node.
        return {
            **result,
            "changed": False,
            "text": text,
            "wheel": str(wheel),
            "program": program,
            "uv": uv,
            "made": changed,
        }
