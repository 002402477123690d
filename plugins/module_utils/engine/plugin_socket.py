# SPDX-License-Identifier: GPL-3.0-or-later
"""A question to a Docker plugin over its unix socket.

The form of questions and answers: https://docs.docker.com/engine/extend/plugin_api/.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any, Dict, Mapping

_TIMEOUT = 10.0  # seconds


class PluginProblem(Exception):  # noqa: N818  # mostly the plugin's own words
    """The plugin does not answer, or refuses; the text is one sentence."""


def ask(path: str, call: str, body: Mapping[str, Any], timeout: float = _TIMEOUT) -> Dict[str, Any]:
    """Return what a plugin answers.

    Args:
        path: its socket.
        call: such as NetworkDriver.EndpointOperInfo.
        body: what is said with it.
        timeout: seconds that it may stay silent.

    Raises:
        PluginProblem: nobody answers, or the answer is an error.
    """
    content = json.dumps(body).encode()
    head = (
        "POST /{0} HTTP/1.1\r\nHost: plugin\r\nConnection: close\r\n"
        "Accept: application/vnd.docker.plugins.v1.1+json\r\nContent-Length: {1}\r\n\r\n"
    )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout)
    try:
        connection.connect(path)
        connection.sendall(head.format(call, len(content)).encode() + content)
        response = http.client.HTTPResponse(connection)
        response.begin()
        answer = json.loads(response.read().decode("utf-8", "replace") or "{}")
        if not isinstance(answer, dict):
            raise ValueError("it says {0!r}".format(answer))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PluginProblem("{0} does not answer: {1}".format(path, reason)) from error
    finally:
        connection.close()
    if answer.get("Err") or response.status != 200:
        said = answer.get("Err") or "status {0}".format(response.status)
        raise PluginProblem("{0} refuses {1}: {2}".format(path, call, said))
    return answer
