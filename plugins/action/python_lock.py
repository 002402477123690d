# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the lock file and the wheel of bare hosts' Python environments; see plugins/modules/python_lock.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.constants import STATE_DIR
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import HostVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env import lock as python_lock
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env import torch_backend

TRAINER = Path(__file__).resolve().parents[2] / "trainer"


class ActionModule(Decision):
    """The action; it works on the controller only."""

    SECRETS = ("index_url", "extra_index_urls", "proxy")

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the sources of the environments, or the precondition failure."""
        home = Path(str(variables.get("inventory_dir") or Path.cwd()))
        requirements = python_lock.requirements_of(TRAINER, options["torch"], options["extras"])
        sources = python_lock.Sources(
            index_url=options["index_url"],
            extra_index_urls=options["extra_index_urls"],
            find_links=[os.path.expanduser(one) for one in options["find_links"]],
            proxy=options["proxy"],
        )
        backends = self._backends(options, requirements, sources, variables)
        groups = variables["groups"]
        cluster = {*groups.get("master", []), *groups.get("workers", [])}
        locks: dict[str, str] = {}
        changed = False
        try:
            for backend in dict.fromkeys(backends.values()):
                name = python_lock.lock_file(backend if options["per_node"] else "")
                locks[backend], made = python_lock.lock(
                    home / name,
                    requirements,
                    options["python"],
                    sources._replace(torch_backend=backend),
                    write=not self._task.check_mode,
                    keep=not cluster <= set(variables["ansible_play_hosts_all"]),
                )
                changed = changed or made
            wheel = python_lock.trainer_wheel(TRAINER, home / STATE_DIR / "wheels")
            uv = python_lock.find_uv()
        except PreconditionFailed as refused:
            return refused.result("inventory")
        program = f"{wheel.name} {wheel.parent.name}"
        # `changed` stays false: a file on the controller is no change of a node.
        return {
            "nodes": {
                host: {"lock": locks[backend], "torch_backend": backend} for host, backend in backends.items()
            },
            "wheel": str(wheel),
            "program": program,
            "uv": uv,
            "made": changed,
        }

    @staticmethod
    def _backends(
        options: dict[str, Any], requirements: str, sources: python_lock.Sources, variables: dict[str, Any]
    ) -> dict[str, str]:
        """Return the torch backend of each host of the play.

        Raises:
            PreconditionFailed: a host's backend is unknown, or the hosts' differ.
        """
        hosts = variables["ansible_play_hosts"]
        if options["torch_backend"] != torch_backend.AUTO:
            return dict.fromkeys(hosts, options["torch_backend"])
        reader = HostVariables(variables)
        torch = next(line for line in requirements.splitlines() if line.startswith("torch"))
        by_gpu: dict[tuple[str, str], str] = {}
        found, problems = {}, []
        for host, gpus in registered(options["gpus"], variables, hosts).items():
            accelerator = reader.node(host).text("rdm_accelerator")
            if accelerator == "cpu":
                found[host] = accelerator
                continue
            try:
                has = torch_backend.variable_of(host, accelerator, gpus)
                if has not in by_gpu:
                    by_gpu[has] = torch_backend.query_uv(*has, torch, sources)
                found[host] = by_gpu[has]
            except PreconditionFailed as refused:
                problems += refused.problems
        if problems := problems or torch_backend.agree(found, options["per_node"]):
            raise PreconditionFailed(problems)
        return found
