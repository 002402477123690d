# SPDX-License-Identifier: GPL-3.0-or-later
"""Run all checks of one node, before anything is changed there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.shell_files import READ_FOR_COMMANDS
from ansible_collections.rdm.provision.plugins.plugin_utils.checks import (
    devices,
    engine,
    existing,
    mirrors,
    network_plugin,
    ports,
    sriov,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem


def check_node(want: DesiredState, facts: ObservedState) -> Findings:
    """Return the findings on one node that runs containers."""
    findings = Findings([], [])
    for check in (
        engine.engine,
        network_plugin.upstream,
        network_plugin.socket,
        engine.reported,
        devices.accelerator,
        devices.gpu_access,
        engine.user_namespaces,
        engine.selinux,
        devices.parent,
        sriov.vfs,
        sriov.other_networks,
        sriov.link_layer,
        sriov.shared_pci_functions,
        sriov.iommu,
        ports.ports,
        ports.virtual_ports,
        ports.opensm,
        devices.memlock,
        devices.shared_memory,
        engine.log_driver,
        engine.config_dir,
        engine.image,
        engine.archives,
        mirrors.mirrors,
        engine.disk,
        existing.network,
        existing.parent_in_use,
        existing.container_name,
        existing.old_names,
        existing.address,
        existing.guests,
        existing.former_cluster,
        devices.rdma,
        login_shell,
        shells,
    ):
        check(want, facts, findings)
    for rail in want.attachments[1:]:
        existing.network(want, facts, findings, rail)
        existing.address(want, facts, findings, rail)
    return findings


def login_shell(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn if commands over ssh lack MY_IP: without root it is in files that not every shell reads."""
    user = facts["user"]
    shell = user["shell"]
    if want.become or not shell or PurePosixPath(shell).name in READ_FOR_COMMANDS:
        return
    findings.warn(
        want.node,
        f"The login shell of {user['name']}, {shell}, reads no file for the command of `ssh {want.node} …`, "
        "which lacks MY_IP: chsh -s /bin/bash gives one that does.",
    )


def check_host(want: DesiredState, facts: ObservedState) -> Findings:
    """Return the findings on a bare host."""
    interfaces = facts["interfaces"]
    own = {address.partition("/")[0] for one in interfaces for address in one["addresses"]}
    findings = Findings([], [])
    devices.shared_memory(want, facts, findings)
    shells(want, facts, findings)
    if want.my_ip in own:
        return findings
    having = sorted(address for address in own if ":" not in address and not address.startswith("127."))
    reason = f"is no address of the host, which has {', '.join(having) or 'none'}"
    hint = "set my_ip to the one that it has on the fabric"
    findings.refuse(want.node, f"my_ip {want.my_ip}", reason, hint)
    return findings


def shells(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn of others' lines in shell files that set another MY_IP, unless the run repairs them."""
    for stray in facts["strays"]:
        if stray["value"] == want.my_ip or (want.run.repair_strays and stray["plain"]):
            continue
        hint = "remove that line"
        if stray["plain"]:
            hint += ", or set my_ip_repair_strays: true, which comments it out"
        what = f"{stray['file']}:{stray['line']}"
        findings.warn(want.node, what, _stray_sentence(stray, want.my_ip), hint)


def with_strays(facts: ObservedState, my_ip: str) -> Mapping[str, Sequence[str]]:
    """Return the roles with work on a node, including others' lines that set MY_IP and are commented out.

    Args:
        facts: what was gathered from the node.
        my_ip: the node's MY_IP; empty if such lines are not repaired.
    """
    work: Mapping[str, Sequence[str]] = facts["work"]
    lines = [
        f"{stray['file']}:{stray['line']} {_stray_sentence(stray, my_ip)}"
        for stray in facts["strays"]
        if my_ip and stray["plain"] and stray["value"] != my_ip
    ]
    return {**work, "my_ip": [*work.get("my_ip", ()), *lines]} if lines else work


def _stray_sentence(stray: Mapping[str, Any], my_ip: str) -> str:
    """Return a sentence on a line that sets another MY_IP."""
    where = " and in ".join(stray["shells"])
    return f"sets MY_IP to {stray['value'] or 'nothing'}, which wins over {my_ip} in {where}"


def check_engine(want: DesiredState, facts: ObservedState) -> list[Problem]:
    """Return the problems of the engine and of the node itself, which do not depend on the plan."""
    findings = Findings([], [])
    engine.engine(want, facts, findings)
    engine.reported(want, facts, findings)
    return findings.problems
