# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks that the engine has and the plugin rdm-sriov lacks, since its state is lost.

With the engine's socket the plugin asks for a network when it needs it. In a container it has no such socket.

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
    ask,
)

_PATIENCE = 30.0  # seconds, for a plugin that serves many at once


class Taught(NamedTuple):
    """What was done.

    Attributes:
        names: the networks that the plugin knows again.
        warnings: those of others that it cannot, in sentences.
    """

    names: List[str]
    warnings: List[str]


def lacking(api: DockerAPI, socket: str) -> List[Dict[str, Any]]:
    """Return the engine's networks of the plugin's driver that the plugin does not know, in order.

    None where no rdm-sriov answers.

    Args:
        api: the engine.
        socket: the plugin's, whose name is the driver's.

    Raises:
        DockerProblem: the engine does not answer.
    """
    try:
        known = ask(socket, INFO, {}).get("Networks")
    except PluginProblem:
        return []
    if not isinstance(known, list):
        return []  # a program of before, which is replaced
    driver = os.path.basename(socket).rpartition(".")[0]
    found = api.get("/networks", filters={"driver": [driver]})
    return sorted((one for one in found if one["Id"] not in known), key=lambda one: str(one["Name"]))


def teach(api: DockerAPI, socket: str, cluster: str, check: bool = False) -> Taught:
    """Tell the plugin the networks that it lacks, as the engine did when they were made.

    Args:
        api: the engine.
        socket: the plugin's.
        cluster: whose networks it must know.
        check: only say which.

    Raises:
        PluginProblem: it cannot know one of these.
        DockerProblem: the engine does not answer.
    """
    if check:
        return Taught([one["Name"] for one in lacking(api, socket)], [])
    taught = Taught([], [])
    for one in lacking(api, socket):
        network = api.get("/networks/{0}".format(one["Id"]))
        pools = (network.get("IPAM") or {}).get("Config") or []
        request = {
            "NetworkID": network["Id"],
            "Options": {GENERIC: network.get("Options") or {}},
            "IPv4Data": [{"Pool": pool["Subnet"]} for pool in pools if ":" not in pool["Subnet"]],
        }
        try:
            ask(socket, CREATE_NETWORK, request, _PATIENCE)
        except PluginProblem as problem:
            sentence = "the network {0} cannot be made known to the plugin again: {1}".format(
                network["Name"], problem
            )
            if is_ours(network.get("Labels"), cluster):
                raise PluginProblem(sentence) from problem
            taught.warnings.append(sentence)
        else:
            taught.names.append(network["Name"])
    return taught
