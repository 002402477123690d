# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the SR-IOV network plugin: which one a node has, and whether its engine supports the desired one."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NO_ENGINE
from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_PLUGIN
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import is_ours
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.engine import version_of
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import OWN, UPSTREAM

_MAY_SERVE = ("running", "restarting", "paused")
# The upstream plugin's Docker client uses this API version.
_UPSTREAM_API = (1, 12)


def installed_plugin(facts: ObservedState, cluster: str) -> str:
    """Return which plugin of the cluster a node has; empty for none."""
    unit = facts["network_plugin"]
    if unit["unit"] and unit["cluster"] == cluster:
        return OWN
    for container in (facts["docker"] or NO_ENGINE)["containers"]:
        labels = container["labels"]
        if is_ours(labels, cluster, "plugin"):
            return str(labels.get(LABEL_PLUGIN) or UPSTREAM)
    return ""


def leaves_upstream(want: DesiredState, facts: ObservedState) -> bool:
    """Return whether this run replaces the upstream plugin with ours and so ends its networks' containers."""
    return (
        want.plugin == OWN and want.run.replace_network and installed_plugin(facts, want.cluster) == UPSTREAM
    )


def upstream(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Refuse the upstream plugin with an engine that rejects its API version."""
    docker = facts["docker"] or NO_ENGINE
    oldest = docker["min_api_version"]
    if want.plugin != UPSTREAM or not oldest or version_of(oldest) <= _UPSTREAM_API:
        return
    findings.refuse(
        want.node,
        "sriov_plugin upstream",
        "forgets all its networks when it is restarted here: it queries the engine in API version 1.12, "
        f"and Docker Engine {docker['version']} refuses those below {oldest}",
        "use sriov_plugin: rdm-sriov, or Docker Engine 24 or older",
    )


def socket(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Refuse a socket that is served by anything but the cluster's plugin."""
    seen, docker = facts["network_plugin"], facts["docker"] or NO_ENGINE
    # Without an engine, the contents of its containers are unknown.
    if not want.plugin or not docker["engine"] or not seen["served_by"]:
        return
    by_unit = seen["served_by"] == OWN and seen["unit"] and seen["cluster"] == want.cluster
    by_container = any(
        is_ours(one["labels"], want.cluster, "plugin") and one["state"] in _MAY_SERVE
        for one in docker["containers"]
    )
    if not by_unit and not by_container:
        reason = "is served by something else already"
        hint = "stop it, or leave it to that (sriov_enabled: false)"
        findings.refuse(want.node, f"sriov_socket {seen['socket']}", reason, hint)
