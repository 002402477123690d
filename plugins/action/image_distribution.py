# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfer image archives to many nodes, from node to node; see plugins/modules/image_distribution.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.modules.image_distribution import DOCUMENTATION
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    RemoteExecutor,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import (
    Decision,
    documented_options,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.image_transfer import distribution
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.peer_transfer import Transfer

Item = Mapping[str, Any]


class ActionModule(Decision):
    """Finds the archives to transfer from node to node, and transfers them one by one."""

    ARGUMENTS = documented_options(DOCUMENTATION)

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return which node has got which archive."""
        result: dict[str, Any] = {"nodes": {}, "indexes": {}, "sent": {}}
        if self._task.check_mode or options["distribution"] == "direct":
            return result
        executor = RemoteExecutor(self, variables)
        for item, hosts in self._archives(variables):
            size = max(int(one.get("size") or 0) for one in hosts.values())
            on_controller = not item.get("remote_src", True)
            if distribution(options["distribution"], len(hosts), size, on_controller) == "peers":
                Transfer(self, executor, options, variables, item, hosts).run(result)
        return result

    def _archives(self, variables: dict[str, Any]) -> list[tuple[Item, dict[str, Item]]]:
        """Return the archives to load, each with the inspections of the hosts that need it."""
        archives: dict[tuple[str, ...], tuple[Item, dict[str, Item]]] = {}
        for name in variables["ansible_play_hosts"]:
            found = variables["hostvars"][name].get("images_inspection") or {}
            for one in found.get("results") or []:
                item = one.get("item") or {}
                if one.get("load") and item.get("path"):
                    key = tuple(str(item.get(part)) for part in ("path", "remote_src", "sha256"))
                    hosts = archives.setdefault(key, (item, {}))[1]
                    if other := hosts.get(str(name)):
                        # Several images of one archive: what one of them needs is fetched.
                        present = set(one.get("present_members") or []) & set(other["present_members"])
                        one = {**one, "present_members": sorted(present)}
                    hosts[str(name)] = {"present_members": [], **one}
        return list(archives.values())
