# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls a network plugin at its socket, as Docker does.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from typing import Any, Dict, Mapping

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import UnixConnection

PLUGIN_SOCKET = "/run/docker/plugins/sriov.sock"
"""Where Docker finds a plugin named sriov."""
CAPABILITIES = "NetworkDriver.GetCapabilities"
CREATE_NETWORK = "NetworkDriver.CreateNetwork"
GENERIC = "com.docker.network.generic"
"""The key of the options of `docker network create -o` in a request."""
VF = "rdm.provision.vf"
"""The name of a VF's key, in the plugin's description of an endpoint and in a container's request."""
FORMER_VF = "rdm.provision.function"
"""Its name before 0.6.0, which containers that were created then have."""
INFO = "RdmSriov.Info"
RESERVE = "RdmSriov.Reserve"
_CONNECT_TIMEOUT = 5.0
_HEADERS = {"Accept": "application/vnd.docker.plugins.v1.1+json"}


class PluginProblem(NodeError):  # noqa: N818  # a state of the node, not an error
    """The plugin does not answer, or refuses; the text is one sentence."""


def call_plugin(path: str, call: str, request: Mapping[str, Any], timeout: float = 30.0) -> Dict[str, Any]:
    """Return a plugin's answer to one call.

    Args:
        path: of its unix socket.
        call: such as NetworkDriver.GetCapabilities.
        request: its arguments.
        timeout: seconds that it may stay silent.

    Raises:
        PluginProblem: nothing answers, or the answer is an error.
    """
    with contextlib.closing(UnixConnection(path, timeout)) as connection:
        try:
            connection.request("POST", "/" + call, json.dumps(request), _HEADERS)
            answer = json.loads(connection.getresponse().read().decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise PluginProblem("{0} does not answer: {1}".format(path, why)) from error
    if not isinstance(answer, dict):
        raise PluginProblem("{0} answers, but not as a plugin does".format(path))
    if answer.get("Err"):
        raise PluginProblem("{0} answers: {1}".format(path, answer["Err"]))
    return answer


def someone_listens(path: str) -> bool:
    """Return whether anything listens on a unix socket."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(_CONNECT_TIMEOUT)
        try:
            connection.connect(path)
        except OSError:
            return False
    return True
