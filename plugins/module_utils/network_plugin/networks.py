# SPDX-License-Identifier: GPL-3.0-or-later
"""Restores networks that the engine has and the plugin rdm-sriov lost with its state.

With the engine's socket the plugin queries a network when it needs it. In a container it has no such socket.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import is_ours
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    CREATE_NETWORK,
    GENERIC,
    INFO,
    PluginProblem,
    call_plugin,
)

_TIMEOUT = 30.0  # seconds, for a plugin that serves many at once


class Restored(NamedTuple):
    """The result of :func:`restore`.

    Attributes:
        names: the restored networks.
        warnings: one sentence per network of others that cannot be restored.
    """

    names: List[str]
    warnings: List[str]


def lacking(api: DockerAPI, socket: str) -> List[Dict[str, Any]]:
    """Return the engine's networks of the plugin's driver that the plugin does not know, sorted by name.

    Empty if no rdm-sriov answers.

    Args:
        api: the engine.
        socket: the plugin's; its file name is the driver's name.

    Raises:
        DockerProblem: the engine does not answer.
    """
    try:
        known = call_plugin(socket, INFO, {}).get("Networks")
    except PluginProblem:
        return []
    if not isinstance(known, list):
        return []  # an earlier version, which will be replaced
    driver = os.path.basename(socket).rpartition(".")[0]
    found = api.get("/networks", filters={"driver": [driver]})
    return sorted((one for one in found if one["Id"] not in known), key=lambda one: str(one["Name"]))


def restore(api: DockerAPI, socket: str, cluster: str, check: bool = False) -> Restored:
    """Create the lost networks in the plugin again, with the engine's own request.

    Raises:
        PluginProblem: one of these cannot be restored.
        DockerProblem: the engine does not answer.
    """
    if check:
        return Restored([one["Name"] for one in lacking(api, socket)], [])
    restored = Restored([], [])
    for one in lacking(api, socket):
        network = api.get("/networks/{0}".format(one["Id"]))
        pools = (network.get("IPAM") or {}).get("Config") or []
        request = {
            "NetworkID": network["Id"],
            "Options": {GENERIC: network.get("Options") or {}},
            "IPv4Data": [{"Pool": pool["Subnet"]} for pool in pools if ":" not in pool["Subnet"]],
        }
        try:
            call_plugin(socket, CREATE_NETWORK, request, _TIMEOUT)
        except PluginProblem as problem:
            sentence = "the network {0} cannot be made known to the plugin again: {1}".format(
                network["Name"], problem
            )
            if is_ours(network.get("Labels"), cluster):
                raise PluginProblem(sentence) from problem
            restored.warnings.append(sentence)
        else:
            restored.names.append(network["Name"])
    return restored
