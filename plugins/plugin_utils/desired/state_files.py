# SPDX-License-Identifier: GPL-3.0-or-later
"""The inputs of the nodes' state files: digests of the roles' desired state, and what to observe."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.constants import RUNTIME_HOST
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.installation import PROGRAM, STATE
from ansible_collections.rdm.provision.plugins.module_utils.sriov import kept_vfs
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.container import job_directory
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.images import archives
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state_file import desired_state_file
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import (
    DRIVERS_ON_AN_INTERFACE,
    OWN,
    UPSTREAM,
    UPSTREAM_IMAGE,
    observed_settings,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.work import ROLES as WORKERS
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
    HostVariables,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import Images
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys

BARE_ROLES = ("my_ip", "hostfile")
"""The roles that a bare host needs; env_up makes its environment."""
_OWN_CONFIG_DIRS = ("my_ip_config_dir", "container_config_dir", "hostfile_config_dir")


class Watched(NamedTuple):
    """What a node's state file observes in addition to what has the cluster's label.

    The option `watch` of plugins/modules/state_file.py.

    Attributes:
        cluster: the cluster's name.
        vfs: for each PF its interface, and the settings of its VFs to observe.
        config_dirs: directories with files of the cluster.
        job_directory: the directory of jobs.
        system: whether MY_IP is set for all users.
        images: names of the images in use.
        archives: image archives on the node.
        users: users of the engine.
        paths: role -> further paths.
        plugin: program, state directory and socket of our network plugin; empty for another or none.
    """

    cluster: str
    vfs: list[list[Any]]
    config_dirs: list[str]
    job_directory: str
    system: bool
    images: list[str]
    archives: list[str]
    users: list[str]
    paths: dict[str, list[str]]
    plugin: dict[str, str]


class StateFile(NamedTuple):
    """What a node's state file compares; `state_files` of what the action `plan` returns.

    Attributes:
        inputs: role -> digest of its desired state, for the roles that the node needs.
        directory: the file's directory, that of the files that the container reads.
        config_dir: the directory of the cluster's files, not expanded.
        absent: the roles whose results are removed.
        sriov: what to gather of the interfaces of the networks.
        addresses: interface -> the node's address there.
        mirrors: the registry mirrors that the engine should use.
        bare: whether it is a bare host.
        repairs: MY_IP, if others' lines that set another one are commented out; else empty.
        watch: what else to observe.
        key_digests: file of the cluster's keys -> digest; empty for a key that is not made yet.
    """

    inputs: dict[str, str]
    directory: str
    config_dir: str
    absent: list[str]
    sriov: dict[str, Any]
    addresses: dict[str, str]
    mirrors: list[str]
    bare: bool
    repairs: str
    watch: Watched
    key_digests: dict[str, str]

    def with_keys(self, keys: cluster_keys.Keys | None, state: DesiredState) -> StateFile:
        """Return it with the digests of the cluster's ssh keys; None means that they are not made yet."""
        digests = key_digests(keys, state.cluster, state.node, state.my_ip)
        return self._replace(key_digests=digests)

    def plain(self) -> dict[str, Any]:
        """Return it as the action returns it."""
        return {**self._asdict(), "watch": self.watch._asdict()}


def state_files(
    reader: HostVariables, states: Mapping[str, DesiredState], images: Mapping[str, Images]
) -> dict[str, StateFile]:
    """Return what each node's state file compares, without keys."""
    return {
        node: _Node(reader.node(node), state).state_file(bool(images[node].image and images[node].listed))
        for node, state in states.items()
    }


def gathered(state: DesiredState) -> dict[str, Any]:
    """Return the option `sriov` of node_facts: what to gather for the networks' interfaces and VFs."""
    sriov, uses_vfs = state.sriov, state.network_driver == "sriov"
    interfaces = state.below_all if state.network_driver in DRIVERS_ON_AN_INTERFACE else []
    return {
        "interfaces": sriov.vfs.pfs if uses_vfs else list(filter(None, interfaces)),
        "vfs": state.vfs_needed,
        "firmware_vfs": sriov.firmware_vfs if uses_vfs else 0,
        "kernel_parameters": uses_vfs and sriov.kernel_parameters,
        "socket": sriov.socket if state.plugin else "",
        "vf_devices": state.vf_devices,
    }


class _Node:
    """Makes the inputs of one node's state file from its variables and its desired state."""

    def __init__(self, variables: NodeVariables, state: DesiredState) -> None:
        self.variables = variables
        self.desired = state
        self.file = desired_state_file(variables, PlanEntry(state.node))
        self.bare = variables.text("rdm_runtime") == RUNTIME_HOST
        self.listed = state.parts["images"].images
        self.sriov = state.parts["sriov"].enabled

    def state_file(self, images: bool) -> StateFile:
        """Return the inputs; `images` says whether the node needs images."""
        state = self.desired
        return StateFile(
            inputs=state.digests(role for role in WORKERS if self.wants(role, images)),
            directory=self.file.directory,
            config_dir=self.file.config_dir,
            absent=[role for role in WORKERS if self._absent(role) and (role in BARE_ROLES or not self.bare)],
            sriov=gathered(state),
            addresses={} if self.bare else state.wire_addresses,
            mirrors=[] if self.bare else self.file.mirrors,
            bare=self.bare,
            repairs=state.my_ip if state.run.repair_strays else "",
            watch=self.watch(),
            key_digests=key_digests(None, state.cluster, state.node, state.my_ip),
        )

    def wants(self, role: str, images: bool) -> bool:
        """Return whether the node needs a role, by its variables."""
        if self._state(role) == "absent" or (self.bare and role not in BARE_ROLES):
            return False
        if role == "docker_engine":
            return bool(self.desired.engine.users)
        if role == "images":
            return images or self.sriov
        return self.sriov if role == "sriov" else True

    def watch(self) -> Watched:
        """Return what else to observe."""
        text = self.variables.text
        directory = self.file.config_dir
        container, vfs = self.desired.container, self.desired.vfs
        names = {str(image["name"]) for image in self.listed}
        names |= {container.image} if container and container.image else set()
        paths: dict[str, list[str]] = {}
        if self.sriov:
            plugin = self.desired.plugin
            names |= set(
                filter(None, [text("sriov_image") or (UPSTREAM_IMAGE if plugin == UPSTREAM else "")])
            )
            paths["sriov"] = [text("sriov_socket")]
            if vfs.number:
                paths["sriov"] += kept_vfs.paths()
        return Watched(
            cluster=self.desired.cluster,
            vfs=[[pf, observed_settings(vfs)] for pf in (vfs.pfs if vfs.number else ())],
            config_dirs=sorted({directory, *filter(None, map(text, _OWN_CONFIG_DIRS))}),
            job_directory=job_directory(self.variables, PlanEntry(self.desired.node)),
            system=self.variables.true("my_ip_system", otherwise=self.desired.become),
            images=sorted(names),
            archives=sorted(archives(self.listed, on_the_node=True)),
            users=sorted(self.desired.engine.users),
            paths=paths,
            plugin=self._plugin(),
        )

    def _absent(self, role: str) -> bool:
        removes = role != "images" or self.variables.true("images_remove")
        return removes and self._state(role) == "absent"

    def _state(self, role: str) -> str:
        # docker_engine_state, images_state, sriov_state, network_state, my_ip_state, container_state,
        # hostfile_state
        return self.variables.text(f"{role}_state")

    def _plugin(self) -> dict[str, str]:
        if self.desired.plugin != OWN:
            return {}
        return {"program": PROGRAM, "state": STATE, "socket": self.desired.sriov.socket}


def key_digests(keys: cluster_keys.Keys | None, cluster: str, node: str, my_ip: str) -> dict[str, str]:
    """Return the digest of each key file of a node; empty if the keys are not made yet."""
    if keys is None:
        return dict.fromkeys(cluster_keys.FILES, "")
    return {name: _short(text) for name, text in cluster_keys.of_node(keys, cluster, node, my_ip).items()}


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
