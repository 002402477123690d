# SPDX-License-Identifier: GPL-3.0-or-later
"""What the receipts of the nodes compare: the roles that are wanted, their inputs, and what to look at."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    CONFIG_DIR,
    RUNTIME_HOST,
    USER_CONFIG_DIR,
)
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.installation import PROGRAM, STATE
from ansible_collections.rdm.provision.plugins.module_utils.sriov import kept_vfs
from ansible_collections.rdm.provision.plugins.plugin_utils.desired import vf_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.images import archives
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import (
    OWN,
    UPSTREAM,
    UPSTREAM_IMAGE,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.work import ROLES as WORKERS
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
    HostVariables,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys

BARE_ROLES = ("my_ip", "hostfile")
"""The roles that a bare host needs of those that need no Docker; its environment is made by env_up."""
_OWN_CONFIG_DIRS = ("my_ip_config_dir", "container_config_dir", "hostfile_config_dir")


def receipts(
    reader: HostVariables,
    states: Mapping[str, DesiredState],
    plan: Mapping[str, Any],
    images: Mapping[str, bool],
    keys: cluster_keys.Keys | None,
) -> dict[str, dict[str, Any]]:
    """Return for each node what its receipt compares, as documented in plugins/modules/plan.py.

    Args:
        reader: the variables.
        states: node -> what it should have.
        plan: what the action plan returns.
        images: node -> whether there is an image to bring.
        keys: the cluster's ssh keys; None where they are yet to be made.
    """
    found = {}
    for node, state in states.items():
        one = _Node(reader.node(node), state)
        found[node] = {
            "inputs": state.digests(role for role in WORKERS if one.wants(role, images[node])),
            "directory": one.directory(),
            "config_dir": one.config_dir(),
            "absent": one.absent,
            "sriov": state.sriov._replace(
                socket=one.plugin_socket(),
                function_devices=state.reserves_vf and state.function_devices,
            ).look(),
            "addresses": {} if one.bare else state.wire_addresses,
            "bare": one.bare,
            "repairs": state.my_ip if state.run.repair_strays else "",
            "watch": one.watch(),
            "key_digests": key_digests(keys, plan["cluster"], node, state.my_ip),
        }
    return found


class _Node:
    """The variables of one node, as far as its receipt is about them."""

    def __init__(self, variables: NodeVariables, state: DesiredState) -> None:
        self.variables = variables
        self.desired = state
        self.bare = variables.text("rdm_runtime") == RUNTIME_HOST
        self.absent = [
            role for role in WORKERS if self._absent(role) and (role in BARE_ROLES or not self.bare)
        ]
        self.listed = state.parts["images"].images
        self.sriov = state.parts["sriov"].enabled

    def wants(self, role: str, images: bool) -> bool:
        """Whether a role has anything to see to on this node, as far as the variables tell."""
        if self._state(role) == "absent" or (self.bare and role not in BARE_ROLES):
            return False
        if role == "docker_engine":
            return bool(self.desired.engine.users)
        if role == "images":
            return images or self.sriov
        return self.sriov if role == "sriov" else True

    def directory(self) -> str:
        """Return where the receipt is: beside the files that the container reads."""
        return self.variables.text("container_config_dir") or self.config_dir()

    def watch(self) -> dict[str, Any]:
        """Return what to look at, as the module receipt takes it."""
        text = self.variables.text
        directory = self.config_dir()
        container, wanted = self.desired.container, self.desired.functions
        names = {str(image["name"]) for image in self.listed}
        names |= {container.image} if container and container.image else set()
        paths: dict[str, list[str]] = {}
        if self.sriov:
            plugin = self.desired.plugin
            names |= set(
                filter(None, [text("sriov_image") or (UPSTREAM_IMAGE if plugin == UPSTREAM else "")])
            )
            paths["sriov"] = [text("sriov_socket")]
            if self.variables.true("sriov_install_wrapper"):
                paths["sriov"].append(f"{text('sriov_wrapper_directory')}/docker_rdma_sriov")
            if wanted:
                paths["sriov"] += kept_vfs.paths()
        return {
            "cluster": self.desired.cluster,
            "functions": [[one.parent, vf_plan.shown(one)] for one in wanted],
            "config_dirs": sorted({directory, *filter(None, map(text, _OWN_CONFIG_DIRS))}),
            "job_directory": self._job_directory(directory),
            "system": self.variables.true("my_ip_system", otherwise=self.desired.become),
            "images": sorted(names),
            "archives": sorted(archives(self.listed, on_the_node=True)),
            "users": sorted(self.desired.engine.users),
            "paths": paths,
            "plugin": self._plugin(),
        }

    def plugin_socket(self) -> str:
        """Return where the node's network plugin is to answer; empty for none."""
        return self.variables.text("sriov_socket") if self.desired.plugin else ""

    def config_dir(self) -> str:
        """Return where the cluster's files are, as it is written before the node is known."""
        given = self.variables.text("rdm_config_dir")
        return given or (CONFIG_DIR if self.desired.become else f"~/{USER_CONFIG_DIR}")

    def _absent(self, role: str) -> bool:
        removes = role != "images" or self.variables.true("images_remove")
        return removes and self._state(role) == "absent"

    def _state(self, role: str) -> str:
        return self.variables.text(f"{role}_state")

    def _plugin(self) -> dict[str, str]:
        if self.desired.plugin != OWN:
            return {}
        return {"program": PROGRAM, "state": STATE, "socket": self.plugin_socket()}

    def _job_directory(self, config_dir: str) -> str:
        given = self.variables.text("container_job_directory") or self.variables.text("job_directory")
        return given or (
            f"/var/lib/rdm/{self.desired.cluster}" if self.desired.become else f"{config_dir}/jobs"
        )


def key_digests(keys: cluster_keys.Keys | None, cluster: str, node: str, my_ip: str) -> dict[str, str]:
    """Return the digest of each file that a node has of the cluster's keys; empty for one yet to be made."""
    if keys is None:
        return dict.fromkeys(cluster_keys.FILES, "")
    return {name: _short(text) for name, text in cluster_keys.of_node(keys, cluster, node, my_ip).items()}


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
