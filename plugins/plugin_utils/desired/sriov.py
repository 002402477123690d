# SPDX-License-Identifier: GPL-3.0-or-later
"""The SR-IOV network plugin and the virtual functions (VFs) that a node should have."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.network_plugin.installation import PROGRAM, STATE
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.node_programs import program_digest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import (
    OWN,
    UPSTREAM_IMAGE,
    vf_parents,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class _Places(NamedTuple):
    """Where `rdm-sriov` is on a node. Tests have it elsewhere, by variables such as `__sriov_program`."""

    program: str
    unit: str
    directory: str


_USUAL = _Places(PROGRAM, "/etc/systemd/system/rdm-sriov.service", STATE)


class PluginContainer(NamedTuple):
    """How a container runs the plugin, as community.docker.docker_container takes it.

    Attributes:
        image: what it runs; empty where the user has to say so.
        command: what it runs of it; empty for the image's own.
        privileged: whether it has all rights on the node. Ours needs no more than the node's links.
        capabilities: those that it has besides the engine's.
        security_opts: its security options.
        volumes: what it sees of the node.
        read_only: whether it writes to its volumes only.
        env: its environment.
        pid_mode: its PID namespace.
        userns_mode: its user namespace.
        restart_policy: when the engine starts it again.
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


class DesiredVfs(NamedTuple):
    """Virtual functions, as the module `rdm.provision.sriov_vf` takes them.

    Attributes:
        parents: the physical functions that have some.
        number: how many each has; 0 where none are wanted.
        first_mac: of the node; MACs and GUIDs are made from it.
        addresses: MACs or GUIDs that the user gives them.
        policy: of InfiniBand VFs.
        vlan: of Ethernet VFs; this and the rest are None to leave it as it is.
        trust: of Ethernet VFs.
        spoof_check: of Ethernet VFs.
        firmware: how many the firmware is set to allow; 0 where it is not touched.
        kernel_parameters: whether the kernel's command line switches the IOMMU on.
        boot_program: digest of the program that makes them again at boot; empty without VFs.
    """

    parents: list[str]
    number: int
    first_mac: str
    addresses: dict[str, Any]
    policy: str
    vlan: int | None
    trust: bool | None
    spoof_check: bool | None
    firmware: int
    kernel_parameters: bool
    boot_program: str


class DesiredSriov(NamedTuple):
    """What the role sriov leaves on a node.

    Attributes:
        enabled: whether the node needs the plugin from this role.
        cluster: the cluster that owns it.
        plugin: `rdm-sriov` or `upstream`.
        run_as: what starts `rdm-sriov`: `auto`, `unit` or `container`.
        socket: where it answers.
        driver: the name that the socket gives the network driver.
        program: where `rdm-sriov` is on the node.
        program_digest: of `rdm-sriov`; empty for another plugin.
        unit: its systemd unit.
        directory: where it remembers its networks.
        engine: the engine's socket, where the user names it.
        container_name: name of its container.
        container: how a container runs it.
        vfs: the virtual functions.
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
    vfs: DesiredVfs


def desired_sriov(variables: NodeVariables, entry: PlanEntry) -> DesiredSriov:
    """Return the plugin and the VFs that a node should have.

    Args:
        variables: the node's.
        entry: what the plan says of it.
    """
    plugin, socket = variables.text("sriov_plugin"), variables.text("sriov_socket")
    places = _Places(
        *(variables.text(f"__sriov_{name}") or usual for name, usual in _USUAL._asdict().items())
    )
    return DesiredSriov(
        enabled=variables.true("sriov_enabled", otherwise=variables.text("network_driver") == "sriov"),
        cluster=variables.text("rdm_cluster"),
        plugin=plugin,
        run_as=variables.text("sriov_run_as"),
        socket=socket,
        driver=PurePosixPath(socket).stem,
        program=places.program,
        program_digest=program_digest("plugin") if plugin == OWN else "",
        unit=places.unit,
        directory=places.directory,
        engine=variables.text("rdm_docker_socket"),
        container_name=variables.text("sriov_container_name"),
        container=_own_container(variables, places, socket)
        if plugin == OWN
        else _upstream_container(variables),
        vfs=_vfs(variables, entry),
    )


def _own_container(variables: NodeVariables, places: _Places, socket: str) -> PluginContainer:
    program, directory = places.program, places.directory
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


def _vfs(variables: NodeVariables, entry: PlanEntry) -> DesiredVfs:
    number = variables.number("sriov_vfs")
    firmware = max(number, variables.number("sriov_firmware_vfs"))
    first_mac = variables.value("sriov_vf_first_mac")
    trust, spoof_check = (variables.value(f"sriov_vf_{name}") for name in ("trust", "spoof_check"))
    return DesiredVfs(
        parents=vf_parents(variables),
        number=number,
        first_mac=entry.vf_mac if first_mac is None else str(first_mac),
        addresses=variables.value("sriov_vf_addresses") or {},
        policy=variables.text("sriov_vf_policy"),
        vlan=variables.value("sriov_vf_vlan"),
        trust=trust,
        spoof_check=spoof_check,
        firmware=firmware if variables.true("sriov_firmware") else 0,
        kernel_parameters=variables.true("sriov_kernel_parameters"),
        boot_program=program_digest("boot") if number else "",
    )
