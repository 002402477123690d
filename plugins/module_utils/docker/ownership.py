# SPDX-License-Identifier: GPL-3.0-or-later
"""Who owns a container or a network, and whether a container's program is up.

What a cluster creates on a node carries two labels. Without them a container or network belongs to somebody
else, and is neither changed nor removed.
"""

from __future__ import annotations

import calendar
import os
import re
import shutil
import time
from typing import Any, Iterable
from urllib.parse import quote

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_CLUSTER, LABEL_ROLE
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import listed_name
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    CAPABILITIES,
    PluginProblem,
    call_plugin,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.podman import serving

NEXT, OLD = ".next", ".old"
"""Suffixes of a container's name: of its successor before it starts, and of the container being replaced."""

# The header of a frame in a container's log: stream, three zeros, four bytes of length.
_FRAME = re.compile("[\x00-\x02]\x00\x00\x00.{4}", re.DOTALL)
_PLUGIN_TIMEOUT = 5.0  # seconds

# Where an engine's program may be, regardless of PATH.
_PROGRAMS = os.pathsep.join(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


def labels(cluster: str, role: str) -> dict[str, str]:
    """Return the labels of what a cluster creates; role is container, network or plugin."""
    return {LABEL_CLUSTER: cluster, LABEL_ROLE: role}


def is_ours(found: dict[str, str] | None, cluster: str, role: str = "") -> bool:
    """Return whether labels are the cluster's (and, if given, the role's)."""
    found = found or {}
    return found.get(LABEL_CLUSTER) == cluster and (not role or found.get(LABEL_ROLE) == role)


def label_filter(cluster: str, role: str) -> list[str]:
    """Return the engine's filter for these labels."""
    return ["{0}={1}".format(key, value) for key, value in labels(cluster, role).items()]


def inspect(api: DockerAPI, kind: str, name: str) -> dict[str, Any] | None:
    """Return the engine's description of a container, network or image; None if there is none.

    Args:
        api: the engine.
        kind: containers, networks or images.
        name: name or id.
    """
    path = "/{0}/{1}".format(kind, quote(name, safe="/:@" if kind == "images" else ""))
    try:
        found = api.get(path if kind == "networks" else path + "/json")
    except DockerError as error:
        if error.status == 404:
            return None
        raise
    if kind == "images":
        return dict(found)
    # The engine also accepts a prefix of an id.
    return found if name in (found["Name"].lstrip("/"), found["Id"]) else None


def remove_container(api: DockerAPI, container: str, volumes: bool = False) -> None:
    """Stop and remove a container, which may be gone already.

    Args:
        api: the engine.
        container: its id.
        volumes: with its anonymous volumes; they may hold a user's data.
    """
    for is_last in (False, True):
        try:
            api.delete("/containers/{0}".format(container), force=True, v=volumes)
        except DockerError as error:
            if error.status == 404:
                return
            # The engine writes the state of a container that ends into the directory it is removing. The
            # container stays, and a second request removes it (https://github.com/moby/moby/issues/52161).
            if is_last or "directory not empty" not in error.message:
                raise
        else:
            return


def last_words(api: DockerAPI, container: dict[str, Any], lines: int = 200, ever: bool = False) -> str:
    """Return the last lines of a container's output, standard output and error interleaved.

    Empty if the engine cannot read the logs (drivers such as none and syslog). The output since this start
    begins where the previous run ended: on a busy machine a container writes before the engine records its
        start.

    Args:
        api: the engine.
        container: as inspect() returns it.
        lines: how many at most.
        ever: whether to include output from before its last start.
    """
    try:
        raw = api.get(
            "/containers/{0}/logs".format(container["Id"]),
            stdout=True,
            stderr=True,
            tail=lines,
            since=None if ever else _seconds(container["State"]["FinishedAt"]),
        )
    except DockerError:
        return ""
    return _FRAME.sub("", str(raw or ""))


def up_for(container: dict[str, Any]) -> float:
    """Return how many seconds a container has been up; 0 if it does not run."""
    if not container["State"]["Running"]:
        return 0.0
    return max(0.0, time.time() - float(_seconds(container["State"]["StartedAt"])))


def plugin_answers(path: str) -> str:
    """Query a network plugin's capabilities; return why it does not answer, "" if it does.

    Plugin.Activate would signal that a new engine has started.
    """
    try:
        found = call_plugin(path, CAPABILITIES, {}, _PLUGIN_TIMEOUT)
    except PluginProblem as problem:
        return str(problem)
    return "" if "Scope" in found else "{0} answers, but it is not a network driver's".format(path)


def refuse_while_needed(api: DockerAPI, driver: str, cluster: str, what: str, check: bool) -> None:
    """Raise if a network still needs a plugin.

    Args:
        api: the engine.
        driver: the plugin's driver.
        cluster: whose plugin it is.
        what: the plugin, as a message names it.
        check: in check mode the cluster's own networks, which would have been removed, are still there:
            ignore them.

    Raises:
        NodeError: a network needs the plugin.
    """
    users = api.get("/networks", filters={"driver": [driver]})
    if check:
        users = [network for network in users if not is_ours(network["Labels"], cluster)]
    if users:
        raise NodeError(
            "{0} stays: {1} with driver {2} need it: {3}".format(
                what,
                "networks" if len(users) > 1 else "a network",
                driver,
                ", ".join(sorted(network["Name"] for network in users)),
            )
        )


def no_engine_here(api: DockerAPI) -> bool:
    """Return whether no engine is installed (rather than not answering)."""
    return not os.path.lexists(api.socket) and shutil.which(serving(api.socket)[0], path=_PROGRAMS) is None


def the_one(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the running container in a list of a cluster's containers; else the first.

    A killed run may have left more than one.
    """
    return min(found, key=lambda container: container.get("State") != "running")


def container_names(found: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names in a list of containers, sorted."""
    return sorted(map(listed_name, found))


def _seconds(moment: str) -> str:
    """Convert the engine's time (2026-01-02T03:04:05.678901234Z) to seconds since 1970, with all digits."""
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?", moment)
    if match is None or moment.startswith("0001"):
        return "0"
    whole = calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S"))
    return "{0}{1}".format(whole, match.group(2) or "")
