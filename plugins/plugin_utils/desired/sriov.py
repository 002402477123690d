# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired SR-IOV network plugin and virtual functions (VFs) of a node."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    LABEL_CLUSTER,
    LABEL_PLUGIN,
    LABEL_ROLE,
)
from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.installation import PROGRAM, STATE
from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_programs import program_digest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import (
    OWN,
    UPSTREAM,
    UPSTREAM_IMAGE,
    desired_vfs,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class _Paths(NamedTuple):
    """Paths of `rdm-sriov` on a node. Tests change them with variables."""

    program: str
    unit: str
    directory: str


_UNIT = "/etc/systemd/system/rdm-sriov.service"


class PluginContainer(NamedTuple):
    """The plugin's container, in the options of community.docker.docker_container.

    Attributes:
        image: its image; empty if the user must name one.
        command: its command; empty for the image's default.
        privileged: whether it has all rights on the node; ours only configures the node's links.
        capabilities: capabilities in addition to the engine's default.
        security_opts: its security options.
        volumes: its mounts.
        read_only: whether it can write only to its volumes.
        env: its environment.
        pid_mode: its PID namespace.
        userns_mode: its user namespace.
        restart_policy: when the engine restarts it.
    """

    image: str
    command: list[str]
    privileged: bool
    capabilities: list[str]
    security_opts: list[str]
    volumes: list[str]
    read_only: bool
    env: dict[str, str]
    pid_mode: str
    userns_mode: str
    restart_policy: str


class DesiredSriov(NamedTuple):
    """Desired state of the role sriov.

    Attributes:
        enabled: whether this role installs the plugin on the node.
        cluster: the cluster that owns it.
        plugin: `rdm-sriov` or `upstream`.
        run_as: what starts `rdm-sriov`: `auto`, `unit` or `container`.
        socket: the plugin's socket.
        driver: the network driver's name, from the socket's.
        program: path of `rdm-sriov` on the node.
        program_digest: of `rdm-sriov`; empty for another plugin.
        unit: its systemd unit.
        directory: where it keeps its state.
        engine: the engine's socket; empty if the user does not set it.
        container_name: name of its container.
        container: options of its container.
        stand_in: whether it is an unknown program of the user's.
        vfs: the VFs.
        firmware_vfs: number of VFs that the firmware is set to allow; 0 to leave it unchanged.
        kernel_parameters: whether the kernel's command line enables the IOMMU.
        boot_program: digest of the program that recreates the VFs at boot; empty without VFs.
    """

    enabled: bool
    cluster: str
    plugin: str
    run_as: str
    socket: str
    driver: str
    program: str
    program_digest: str
    unit: str
    directory: str
    engine: str
    container_name: str
    container: PluginContainer
    stand_in: bool
    vfs: DesiredVfs
    firmware_vfs: int
    kernel_parameters: bool
    boot_program: str


def desired_sriov(variables: NodeVariables, entry: PlanEntry) -> DesiredSriov:
    """Return the desired plugin and VFs of a node.

    Raises:
        ValueError: the VFs are impossible.
    """
    vfs = desired_vfs(variables, entry.vf_mac)
    plugin, socket = variables.text("sriov_plugin"), variables.text("sriov_socket")
    paths = _Paths(
        program=variables.text("__sriov_program") or PROGRAM,
        unit=variables.text("__sriov_unit") or _UNIT,
        directory=variables.text("__sriov_directory") or STATE,
    )
    return DesiredSriov(
        enabled=variables.true("sriov_enabled", otherwise=variables.text("network_driver") == "sriov"),
        cluster=variables.text("rdm_cluster"),
        plugin=plugin,
        run_as=variables.text("sriov_run_as"),
        socket=socket,
        driver=PurePosixPath(socket).stem,
        program=paths.program,
        program_digest=program_digest("plugin") if plugin == OWN else "",
        unit=paths.unit,
        directory=paths.directory,
        engine=variables.text("rdm_docker_socket"),
        container_name=variables.text("sriov_container_name"),
        container=_own_container(variables, paths, socket)
        if plugin == OWN
        else _upstream_container(variables),
        stand_in=bool(variables.value("sriov_command")),
        vfs=vfs,
        firmware_vfs=max(1, vfs.number, variables.number("sriov_firmware_vfs"))
        if variables.true("sriov_firmware")
        else 0,
        kernel_parameters=variables.true("sriov_kernel_parameters"),
        boot_program=program_digest("boot") if vfs.number else "",
    )


def sriov_steps(
    part: DesiredSriov, variables: NodeVariables, entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return what the role's tasks read in addition to the part.

    `in_place` is the plugin that the cluster has on the node. `replaces` is whether it is not the desired
    one, `container_goes` whether a unit replaces its container, and `must_be_free` whether the container's
    name and socket must not be in use. `labels` are the container's. `problem` is why it is not started.
    `waiting` lists in sentences what waits for a reboot, and `reboots` is whether there has to be one.
    """
    seen, unit = observed.container(part.container_name), observed.preflight.get("network_plugin") or {}
    labels = seen.get("labels") or {}
    ours = labels.get(LABEL_CLUSTER) == part.cluster
    in_place = labels.get(LABEL_PLUGIN, UPSTREAM) if ours else ""
    if unit.get("unit") and unit.get("cluster") == part.cluster:
        in_place = OWN
    becomes_unit = part.run_as == "unit" or (part.run_as == "auto" and unit.get("systemd", False))
    prepared = [observed.result(name) for name in ("__sriov_firmware", "__sriov_kernel")]
    # A new program needs a new container.
    program = {"rdm.provision.program": observed.result("__sriov_installed").get("digest", "")}
    return {
        "in_place": in_place,
        "replaces": in_place not in ("", part.plugin),
        "container_goes": part.plugin == OWN and becomes_unit and ours,
        "must_be_free": not ours or seen.get("state") != "running" or in_place != part.plugin,
        "labels": {
            LABEL_CLUSTER: part.cluster,
            LABEL_ROLE: "plugin",
            LABEL_PLUGIN: part.plugin,
            **(program if part.plugin == OWN else {}),
        },
        "problem": _problem(part.container.image, part.plugin, variables, observed.planned),
        "prepares": variables.true("sriov_firmware") or variables.true("sriov_kernel_parameters"),
        "waiting": [reason for one in prepared for reason in one.get("reasons") or ()],
        "reboots": any(one.get("reboot_required") for one in prepared),
        "vfs_ending": entry.observed.get("vfs_ending") or {},
    }


def _problem(image: str, plugin: str, variables: NodeVariables, planned: bool) -> str:
    """Return why the plugin's container is not started; empty if it is."""
    # Preflight has a stricter check.
    pinned = planned or variables.true("sriov_allow_tag") or "@sha256:" in image
    if plugin == UPSTREAM and not pinned:
        return (
            f"sriov_image {image} names no digest, and what it names runs with all rights on the node: write "
            "repository@sha256:..., or set sriov_allow_tag to true"
        )
    if not image:
        return (
            "systemd does not run here, so the plugin needs a container: set sriov_image to an image with "
            "Python 3.8 or newer and the command ip"
        )
    return ""


def _own_container(variables: NodeVariables, paths: _Paths, socket: str) -> PluginContainer:
    program, directory = paths.program, paths.directory
    directories = (PurePosixPath(program).parent, PurePosixPath(socket).parent, PurePosixPath(directory))
    modes = (":ro", "", "")
    command = variables.texts("sriov_command") or ["python3", program]
    return _upstream_container(variables)._replace(
        image=variables.text("sriov_image") or variables.text("container_image"),
        command=[*command, "--socket", socket, "--state", directory],
        privileged=False,
        capabilities=["NET_ADMIN"],
        security_opts=["no-new-privileges", *variables.texts("sriov_security_opts")],
        volumes=[f"{path}:{path}{mode}" for path, mode in zip(directories, modes, strict=True)],
        read_only=True,
    )


def _upstream_container(variables: NodeVariables) -> PluginContainer:
    userns_mode = variables.value("sriov_userns_mode")
    environment = variables.value("sriov_env") or {}
    return PluginContainer(
        image=variables.text("sriov_image") or UPSTREAM_IMAGE,
        command=[],
        privileged=variables.true("sriov_privileged"),
        capabilities=variables.texts("sriov_capabilities"),
        security_opts=variables.texts("sriov_security_opts"),
        volumes=variables.texts("sriov_volumes"),
        read_only=False,
        env={name: str(value) for name, value in environment.items()},
        pid_mode=variables.text("sriov_pid_mode"),
        userns_mode=variables.text("container_userns_mode") if userns_mode is None else str(userns_mode),
        restart_policy=variables.text("sriov_restart_policy"),
    )
