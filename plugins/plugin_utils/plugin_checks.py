# SPDX-License-Identifier: GPL-3.0-or-later
"""Which SR-IOV network plugin a node has, and whether its engine lets the wanted one live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_PLUGIN
from ansible_collections.rdm.provision.plugins.module_utils.engine.ownership import is_ours
from ansible_collections.rdm.provision.plugins.plugin_utils.node_plan import Findings, NodePlan
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import Problem

OWN, UPSTREAM = "rdm-sriov", "upstream"
UPSTREAM_IMAGE = "rdma/sriov-plugin:latest"
# The upstream plugin's own Docker client speaks this version of the API first.
_UPSTREAM_API = (1, 12)


def plugin_in_place(facts: Mapping[str, Any], cluster: str) -> str:
    """Return which of the cluster's plugins a node has; empty for none."""
    unit = facts.get("network_plugin") or {}
    if unit.get("unit") and unit.get("cluster") == cluster:
        return OWN
    for container in (facts.get("docker") or {}).get("containers") or []:
        labels = container.get("labels") or {}
        if is_ours(labels, cluster, "plugin"):
            return str(labels.get(LABEL_PLUGIN) or UPSTREAM)
    return ""


def upstream(want: NodePlan, facts: Mapping[str, Any], findings: Findings) -> None:
    """Refuse the upstream plugin under an engine that makes it destructive."""
    docker = facts.get("docker") or {}
    oldest = str(docker.get("min_api_version") or "")
    if want.plugin != UPSTREAM or not oldest or _version(oldest) <= _UPSTREAM_API:
        return
    findings.problems.append(
        Problem(
            want.node,
            "sriov_plugin upstream",
            "forgets all its networks when it is restarted here: it asks the engine in API version 1.12, and "
            f"Docker Engine {docker.get('version')} refuses those below {oldest}",
            "use sriov_plugin: rdm-sriov, or Docker Engine 24 or older",
        )
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
