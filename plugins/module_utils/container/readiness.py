# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks that a container's name is free, and waits until the container is ready."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NoReturn, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_CLUSTER
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import listed_name
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import (
    inspect,
    is_ours,
    last_words,
    plugin_answers,
    up_for,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import someone_listens

_POLL = 0.1  # seconds
_LAST_LINES = 5
_WORDS_TIMEOUT = 10.0  # seconds


def refuse_taken(api: DockerAPI, name: str, cluster: str, socket: str = "") -> None:
    """Raise unless the name, and the socket if one is given, are free or ours.

    Raises:
        NodeError: the name or the socket is in use by others.
    """
    container = inspect(api, "containers", name)
    if container is not None and not is_ours(container["Config"].get("Labels"), cluster):
        raise NodeError(
            "container {0} is not ours (it lacks the label {1}={2}): "
            "remove it, or choose another name".format(name, LABEL_CLUSTER, cluster)
        )
    running = container is not None and container["State"]["Running"]
    if socket and not running and someone_listens(socket):
        refuse_served(api, socket)


def refuse_served(api: DockerAPI, socket: str) -> NoReturn:
    """Raise NodeError: something else serves a plugin's socket. Name it where it is known."""
    raise NodeError(
        "something else serves {0} already{1}: stop it, or leave it to that (sriov_enabled: false)".format(
            socket, _suspect(api, socket)
        )
    )


def wait_ready(api: DockerAPI, name: str, socket: str, ready_line: str, timeout: float) -> None:
    """Return when the container is ready.

    Raises:
        NodeError: it ended or timed out.
    """
    deadline = time.monotonic() + timeout
    container = inspect(api, "containers", name)
    long_up = container is not None and up_for(container) > timeout
    while True:
        why_not = _why_not(api, container, name, socket, "" if long_up else ready_line)
        if why_not is None:
            return
        if time.monotonic() > deadline:
            raise NodeError(
                "container {0} is not ready after {1:g} s: {2}{3}".format(
                    name, timeout, why_not, _words(api, container)
                )
            )
        time.sleep(_POLL)
        container = inspect(api, "containers", name)


def _why_not(
    api: DockerAPI, container: Optional[Dict[str, Any]], name: str, socket: str, ready_line: str
) -> Optional[str]:
    """Return why it is not ready yet, None if it is. Raise NodeError if it never will be."""
    if container is None:
        raise NodeError("there is no container {0}".format(name))
    state = container["State"]
    if state["Status"] in ("exited", "dead") or state.get("Restarting"):
        raise NodeError(
            "container {0} ended with status {1}{2}{3}".format(
                name,
                state["ExitCode"],
                ": " + state["Error"] if state.get("Error") else "",
                _words(api, container),
            )
        )
    if not state["Running"]:
        return "it is {0}".format(state["Status"])
    if ready_line and ready_line not in last_words(api, container):
        return "it has not written {0!r}".format(ready_line)
    return (plugin_answers(socket) or None) if socket else None


def _words(api: DockerAPI, container: Optional[Dict[str, Any]]) -> str:
    """Return the container's last lines, to be appended to a sentence."""
    # The engine may report the end of a container before it has stored its output.
    deadline = time.monotonic() + _WORDS_TIMEOUT
    lines: List[str] = []
    while container is not None:
        lines = last_words(api, container, _LAST_LINES, ever=True).splitlines()
        if lines or container["State"]["Running"] or time.monotonic() > deadline:
            break
        time.sleep(_POLL)
    if not lines:
        return "; it has written nothing"
    return "; its last output: " + " | ".join(line.strip() for line in lines)


def _suspect(api: DockerAPI, socket: str) -> str:
    """Name the running containers that have the socket's directory mounted."""
    directory = os.path.realpath(os.path.dirname(socket))
    names = []
    for container in api.get("/containers/json"):
        sources = [
            os.path.realpath(mount.get("Source") or "/nowhere") for mount in container.get("Mounts") or ()
        ]
        if any(os.path.commonpath([source, directory]) == source for source in sources if source != "/"):
            names.append(listed_name(container))
    return " (container {0})".format(", ".join(sorted(names))) if names else ""
