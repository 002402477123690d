# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfer image archives to many nodes, from node to node; see plugins/modules/image_distribution.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.remote_executor import (
    RemoteExecutor,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.archive_files import other_images, refused
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.controller_action import Decision
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.image_transfer import (
    FEWEST_READERS,
    Shared,
    distribution,
    on_file_server,
    progress_line,
    shared_images,
    unpacks,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.peer_transfer import (
    Transfer,
    call_all,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.image_pull import pull_problem
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered

Item = Mapping[str, Any]

PULL = "community.docker.docker_image_pull"
PULL_S = 4 * 3600.0
"""Timeout in seconds for a node that pulls an image for others; then each of them pulls it."""


class ActionModule(Decision):
    """Finds the archives and images to transfer from node to node, and transfers them one by one."""

    def decide(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return which node has got which archive or image."""
        result: dict[str, Any] = {"nodes": {}, "indexes": {}, "sent": {}, "pulled": {}}
        if self._task.check_mode or options["distribution"] == "direct":
            return result
        executor = RemoteExecutor(self, variables)
        if not options["registry"]:
            for item, hosts in self._archives(variables):
                size = max(int(one.get("size") or 0) for one in hosts.values())
                on_controller = not item.get("remote_src", True)
                server = on_file_server(hosts.values())
                unpack = not on_controller and unpacks(hosts.values())
                transfer = Transfer(self, executor, options, variables, item, hosts, unpack=unpack)
                chosen = options["distribution"]
                way = distribution(chosen, len(hosts), size, on_controller, server)
                if way == "peers" and (why := other_images(hosts)):
                    if chosen == "peers":
                        raise PreconditionFailed(refused(str(item["path"]), hosts), "an archive was loaded")
                    self._display.warning(f"{item['path']} {why}: each node reads its own")
                    way = "direct"
                if way == "peers":
                    transfer.run(result)
                elif distribution(chosen, FEWEST_READERS, size, on_controller, server) == "peers":
                    # An earlier run, in which more nodes lacked the archive, may have left parts of it.
                    transfer.forget()
        elif options["distribution"] == "peers":
            lacking = registered("__images_lacking", variables, variables["ansible_play_hosts"])
            shared, warnings = shared_images(lacking)
            for warning in warnings:
                self._display.warning(warning)
            for one in shared:
                self._share(executor, options, variables, one, result)
        return result

    def _share(
        self,
        executor: RemoteExecutor,
        options: dict[str, Any],
        variables: dict[str, Any],
        shared: Shared,
        result: dict[str, Any],
    ) -> None:
        """Pull an image on one node, and transfer it to others; those that do not get it pull it later."""
        image, (first, *_others) = shared
        item = {"path": image, "image": True}
        hosts: dict[str, Item] = {name: {} for name in shared.hosts}
        transfer = Transfer(self, executor, options, variables, item, hosts)
        self._display.display(progress_line(f"{image}: {first} pulls it"), stderr=True)
        pull = {first: {"name": image, "pull": "not_present"}}
        answers, problems = call_all(executor, PULL, pull, 1, PULL_S, transfer.require_run)
        if first in problems:
            why = pull_problem(image, problems[first])
            self._display.warning(f"{image} is pulled by each node, since {first} could not pull it: {why}")
            return
        if answers[first].get("changed"):
            result["pulled"].setdefault(first, []).append(image)
        copies, _problems = transfer.outcome(result, "pulls it")
        for name, copy in copies.items():
            result["nodes"].setdefault(name, {})[image] = copy

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
                        new = sum(int(each.get("new_bytes") or 0) for each in (one, other))
                        one = {**one, "present_members": sorted(present), "new_bytes": new}
                    hosts[str(name)] = {"present_members": [], **one}
        return list(archives.values())
