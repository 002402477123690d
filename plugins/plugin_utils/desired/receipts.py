# SPDX-License-Identifier: GPL-3.0-or-later
"""What the receipts of the nodes compare: the roles that are wanted, their inputs, and what to look at."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    CONFIG_DIR,
    RUNTIME_HOST,
    USER_CONFIG_DIR,
)
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.installation import PROGRAM, STATE
from ansible_collections.rdm.provision.plugins.module_utils.sriov import kept_vfs
from ansible_collections.rdm.provision.plugins.plugin_utils.desired import state, vf_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.node_plan import (
    OWN,
    UPSTREAM,
    UPSTREAM_IMAGE,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_inputs import (
    function_devices,
    wire_addresses,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import (
    plugin_of,
    sriov_settings,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.work import ROLES as WORKERS
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
    HostVariables,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys

BARE_ROLES = ("my_ip", "hostfile")
"""The roles that a bare host needs of those that need no Docker; its environment is made by env_up."""
_OWN_CONFIG_DIRS = ("my_ip_config_dir", "container_config_dir", "hostfile_config_dir")


def receipts(
    reader: HostVariables,
    plan: Mapping[str, Any],
    become: Mapping[str, bool],
    images: Mapping[str, bool],
    keys: cluster_keys.Keys | None,
) -> dict[str, dict[str, Any]]:
    """Return for each node what its receipt compares, as documented in plugins/modules/plan.py.

    Args:
        reader: the variables.
        plan: what the action plan returns.
        become: node -> whether root works there.
        images: node -> whether there is an image to bring.
        keys: the cluster's ssh keys; None where they are yet to be made.
    """
    found = {}
    for node in reader.hosts:
        one = _Node(reader, node, plan, become[node])
        found[node] = {
            "inputs": {role: one.digest(role) for role in WORKERS if one.wants(role, images[node])},
            "directory": one.directory(),
            "config_dir": one.config_dir(),
            "absent": one.absent,
            "sriov": sriov_settings(reader.known(node))
            ._replace(socket=one.plugin_socket(), function_devices=one.function_devices())
            .look(),
            "addresses": wire_addresses(reader, node, plan),
            "bare": one.bare,
            "repairs": plan["nodes"][node]["my_ip"] if reader.true(node, "my_ip_repair_strays") else "",
            "watch": one.watch(),
            "key_digests": key_digests(keys, plan["cluster"], node, plan["nodes"][node]["my_ip"]),
        }
    return found


class _Node:
    """The variables of one node, as far as its receipt is about them."""

    def __init__(self, reader: HostVariables, node: str, plan: Mapping[str, Any], become: bool) -> None:
        self.reader = reader
        self.node = node
        self.variables = reader.node(node)
        self.cluster = plan["cluster"]
        self.image = plan["nodes"][node]["image"]
        self.accelerator = plan["nodes"][node]["accelerator"]
        self.become = become
        self.inventory_dir = str(reader.written(node).get("inventory_dir") or "")
        self.bare = reader.text(node, "rdm_runtime") == RUNTIME_HOST
        self.absent = [
            role for role in WORKERS if self._absent(role) and (role in BARE_ROLES or not self.bare)
        ]
        self.listed = self._listed()
        self.entry = PlanEntry.of(plan, node)._replace(archives=tuple(self.local_archives()))
        self.sriov = self._sriov()
        try:
            self.functions = vf_plan.functions_of(reader.known(node))
        except ValueError:
            self.functions = vf_plan.NONE  # which is told already

    def wants(self, role: str, images: bool) -> bool:
        """Whether a role has anything to see to on this node, as far as the variables tell."""
        if self._state(role) == "absent" or (self.bare and role not in BARE_ROLES):
            return False
        if role == "docker_engine":
            return bool(self._list("docker_engine_users"))
        if role == "images":
            return images or self.sriov
        return self.sriov if role == "sriov" else True

    def digest(self, role: str) -> str:
        """Return the digest of what a role should leave here.

        Empty where it is not known before the role runs: its variables refer to what is not known yet, or
        what it brings may be newer each time.
        """
        if role == "images" and any(image.get("pull") == "always" for image in self.listed):
            return ""
        try:
            return state.digest(role, self.variables, self.entry)
        except (AnsibleError, ValueError):
            return ""

    def directory(self) -> str:
        """Return where the receipt is: beside the files that the container reads."""
        return self.reader.text(self.node, "container_config_dir") or self.config_dir()

    def watch(self) -> dict[str, Any]:
        """Return what to look at, as the module receipt takes it."""
        own = [self.reader.text(self.node, name) for name in _OWN_CONFIG_DIRS]
        directory = self.config_dir()
        names = {str(image["name"]) for image in self.listed} | ({self.image} if self.image else set())
        paths: dict[str, list[str]] = {}
        if self.sriov:
            names |= set(filter(None, [self._plugin_image()]))
            paths["sriov"] = [self.reader.text(self.node, "sriov_socket")]
            if self.reader.true(self.node, "sriov_install_wrapper"):
                folder = self.reader.text(self.node, "sriov_wrapper_directory")
                paths["sriov"].append(f"{folder}/docker_rdma_sriov")
            if self.functions.number:
                paths["sriov"] += kept_vfs.paths()
        return {
            "cluster": self.cluster,
            "functions": [[parent, self.functions.shows] for parent in self.functions.parents],
            "config_dirs": sorted({directory, *filter(None, own)}),
            "job_directory": self._job_directory(directory),
            "system": self.reader.true(self.node, "my_ip_system", otherwise=self.become),
            "images": sorted(names),
            "archives": sorted(self._archives(on_the_node=True)),
            "users": sorted(map(str, self._list("docker_engine_users"))),
            "paths": paths,
            "plugin": self._plugin(),
        }

    def local_archives(self) -> Iterator[tuple[Any, ...]]:
        """Yield path, size and time of the image archives that are on the controller."""
        for path in self._archives(on_the_node=False):
            try:
                now = os.stat(os.path.join(self.inventory_dir, os.path.expanduser(path)))
            except OSError:
                yield (path, None)
            else:
                yield (path, now.st_size, now.st_mtime_ns)

    def _archives(self, on_the_node: bool) -> Iterator[str]:
        for image in self.listed:
            if image.get("source") == "archive" and bool(image.get("remote_src", True)) is on_the_node:
                yield str(image["path"])

    def _absent(self, role: str) -> bool:
        removes = role != "images" or self.reader.true(self.node, "images_remove")
        return removes and self._state(role) == "absent"

    def _state(self, role: str) -> str:
        return self.reader.text(self.node, f"{role}_state")

    def _listed(self) -> list[dict[str, Any]]:
        profiles = self.reader.role_value(self.node, "images_profiles")
        images = self._list("images_list") or (profiles or {}).get(self.accelerator) or []
        return [image for image in images if isinstance(image, dict) and image.get("name")]

    def _sriov(self) -> bool:
        driver = self.reader.text(self.node, "network_driver")
        return self.reader.true(self.node, "sriov_enabled", otherwise=driver == "sriov")

    def _plugin_image(self) -> str:
        given = self.reader.text(self.node, "sriov_image")
        return given or (UPSTREAM_IMAGE if plugin_of(self.reader.known(self.node)) == UPSTREAM else "")

    def plugin_socket(self) -> str:
        """Return where the node's network plugin is to answer; empty for none."""
        plugin = plugin_of(self.reader.known(self.node))
        return self.reader.text(self.node, "sriov_socket") if plugin else ""

    def function_devices(self) -> bool:
        """Return whether the RDMA devices of the container's functions are looked at with the container."""
        reserves = (
            self.reader.text(self.node, "network_driver") == "sriov"
            and plugin_of(self.reader.known(self.node)) == OWN
        )
        return reserves and function_devices(self.reader, self.node)

    def _plugin(self) -> dict[str, str]:
        if plugin_of(self.reader.known(self.node)) != OWN:
            return {}
        return {"program": PROGRAM, "state": STATE, "socket": self.plugin_socket()}

    def _list(self, name: str) -> list[Any]:
        value = self.reader.role_value(self.node, name)
        return list(value) if isinstance(value, (list, tuple)) else []

    def config_dir(self) -> str:
        given = self.reader.text(self.node, "rdm_config_dir")
        return given or (CONFIG_DIR if self.become else f"~/{USER_CONFIG_DIR}")

    def _job_directory(self, config_dir: str) -> str:
        given = self.reader.text(self.node, "container_job_directory") or self.reader.text(
            self.node, "job_directory"
        )
        return given or (f"/var/lib/rdm/{self.cluster}" if self.become else f"{config_dir}/jobs")


def key_digests(keys: cluster_keys.Keys | None, cluster: str, node: str, my_ip: str) -> dict[str, str]:
    """Return the digest of each file that a node has of the cluster's keys; empty for one yet to be made."""
    if keys is None:
        return dict.fromkeys(cluster_keys.FILES, "")
    return {name: _short(text) for name, text in cluster_keys.of_node(keys, cluster, node, my_ip).items()}


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
