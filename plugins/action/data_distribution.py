# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfer large data files to many nodes, from node to node; see plugins/modules/data_distribution.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible_collections.rdm.provision.plugins.action.job_data import (
    MODULE,
    files,
    remember_digest,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.modules.data_distribution import DOCUMENTATION
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    RemoteExecutor,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import (
    Decision,
    documented_options,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.image_transfer import SMALLEST
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.peer_transfer import (
    Transfer,
    call_all,
    remove_left,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import distribution_problems
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.role_variables import variable_problems


class ActionModule(Decision):
    """Finds the files to transfer from node to node, and transfers them one by one."""

    ARGUMENTS = documented_options(DOCUMENTATION)

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return which node has got which file."""
        chosen = {
            "images_distribution": options["distribution"],
            "images_network": options["network"],
            "images_port": options["port"],
            "images_bandwidth": options["bandwidth"],
        }
        node = str(variables["inventory_hostname"])
        if problems := [*variable_problems(node, chosen), *distribution_problems(node, chosen)]:
            raise PreconditionFailed(problems)
        result: dict[str, Any] = {"nodes": {}, "sent": {}}
        # Not by default, since the transfer is not encrypted.
        if options["distribution"] != "peers":
            return result
        source = Path(options["source"]).absolute()
        if not source.is_dir():
            raise AnsibleActionFail(f"there is no directory {source} on the controller")
        sizes = {path: (source / path).stat().st_size for path in files(source)}
        large = {path: size for path, size in sizes.items() if size >= SMALLEST}
        if self._task.check_mode or len(options["directories"]) < 2 or not large:
            return result
        executor = RemoteExecutor(self, variables)
        arguments = {
            str(name): {"source": str(source), "directory": directory, "sizes": large, "by_size": True}
            for name, directory in options["directories"].items()
        }
        # A node that does not answer gets a direct copy later, whose failure says why.
        answers, _problems = call_all(executor, MODULE, arguments, int(variables["ansible_forks"]))
        for path, size in large.items():
            # In the order of the inventory: a later run has the same source, and the others continue.
            lacking = {
                name: {"size": size} for name in arguments if path in answers.get(name, {}).get("needed", ())
            }
            if lacking:
                self._bring(executor, options, variables, source / path, lacking, path, result)
        return result

    def _bring(
        self,
        executor: RemoteExecutor,
        options: dict[str, Any],
        variables: dict[str, Any],
        file: Path,
        lacking: Mapping[str, Mapping[str, Any]],
        path: str,
        result: dict[str, Any],
    ) -> None:
        """Transfer one file to several nodes, and add those that have it to `result`."""
        index = ArchiveIndex("none", file.stat().st_size, "", 0, False, [])
        item = {"path": str(file), "remote_src": False}
        found: dict[str, Any] = {"nodes": {}, "indexes": {}, "sent": {}}
        transfer = Transfer(self, executor, options, variables, item, lacking, index)
        if len(lacking) == 1:
            transfer.forget()  # an earlier run may have left parts of it
            return
        transfer.run(found)
        if transfer.sha256:
            remember_digest(file, Path(constants.DEFAULT_LOCAL_TMP), transfer.sha256)
        result["sent"].update(found["sent"])
        broken = {}
        for name, ends in found["nodes"].items():
            (end,) = ends.values()
            if "problem" not in end:
                result["nodes"].setdefault(name, {})[path] = end["copy"]
                continue
            self._display.warning(f"{name} gets it directly: {end['problem']}")
            if left := end.get("copy") or end.get("left"):
                broken[name] = left
        remove_left(executor, broken, int(variables["ansible_forks"]))
