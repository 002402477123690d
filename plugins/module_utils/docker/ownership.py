# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a container or a network is, and whether what runs in a container has come up.

What a cluster makes on a node carries two labels. Whatever lacks them belongs to somebody else and is
neither changed nor removed.
"""

from __future__ import annotations

import calendar
import os
import re
import shutil
import time
from typing import Any, Iterable
from urllib.parse import quote

from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_CLUSTER, LABEL_ROLE
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import listed_name
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    CAPABILITIES,
    PluginProblem,
    ask,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.podman import serving

NEXT, OLD = ".next", ".old"
"""Behind the name of a container: its successor before it starts, and the one that makes room for it."""

# The frames in which the engine hands out what a container wrote: stream, three zeros, four bytes of length.
_FRAME = re.compile("[\x00-\x02]\x00\x00\x00.{4}", re.DOTALL)
_PLUGIN_TIMEOUT = 5.0  # seconds a plugin may take to answer

# Where an engine's program is, whatever PATH says.
_PROGRAMS = os.pathsep.join(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


class PreconditionFailed(Exception):  # noqa: N818  # one sentence for fail_json
    """Somebody else's work needs it; the text is one sentence."""


def labels(cluster: str, role: str) -> dict[str, str]:
    """Return the labels of what a cluster makes; role is container, network or plugin."""
    return {LABEL_CLUSTER: cluster, LABEL_ROLE: role}


def is_ours(found: dict[str, str] | None, cluster: str, role: str = "") -> bool:
    """Return whether these labels are those of the cluster (and, where given, of the role)."""
    found = found or {}
    return found.get(LABEL_CLUSTER) == cluster and (not role or found.get(LABEL_ROLE) == role)


def label_filter(cluster: str, role: str) -> list[str]:
    """Return the engine's filter for what carries the labels."""
    return ["{0}={1}".format(key, value) for key, value in labels(cluster, role).items()]


def inspect(api: DockerAPI, kind: str, name: str) -> dict[str, Any] | None:
    """Return what the engine knows of a container, network or image; None when there is none.

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
    # The engine also takes a part of an id for a name.
    return found if name in (found["Name"].lstrip("/"), found["Id"]) else None


def last_words(api: DockerAPI, container: dict[str, Any], lines: int = 200, ever: bool = False) -> str:
    """Return the last lines that a container wrote, standard output and error as they came.

    Returns nothing where the engine cannot read its logs (drivers such as none and syslog). What this start
    wrote begins where the one before ended: on a busy machine a container has written before the engine
    notes that it has started.

    Args:
        api: the engine.
        container: as inspect() returns it.
        lines: at most so many.
        ever: also those from before its last start.
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
    """Return for how many seconds a running container has been up; 0 when it does not run."""
    if not container["State"]["Running"]:
        return 0.0
    return max(0.0, time.time() - float(_seconds(container["State"]["StartedAt"])))


def plugin_answers(path: str) -> str:
    """Ask a network plugin what it can; return why it does not say it, or nothing when it does.

    Plugin.Activate would tell it that a new engine has begun.

    Args:
        path: the plugin's unix socket.
    """
    try:
        found = ask(path, CAPABILITIES, {}, _PLUGIN_TIMEOUT)
    except PluginProblem as problem:
        return str(problem)
    return "" if "Scope" in found else "{0} answers, but it is not a network driver's".format(path)


def refuse_while_needed(api: DockerAPI, driver: str, cluster: str, what: str, check: bool) -> None:
    """Return when no network needs a plugin any more.

    Args:
        api: the engine.
        driver: that the plugin serves.
        cluster: whose plugin it is.
        what: is to go, as a person calls it.
        check: nothing is removed, so that the cluster's own networks are still there, which would be gone.

    Raises:
        PreconditionFailed: a network needs it.
    """
    users = api.get("/networks", filters={"driver": [driver]})
    if check:
        users = [network for network in users if not is_ours(network["Labels"], cluster)]
    if users:
        raise PreconditionFailed(
            "{0} stays: {1} with driver {2} need it: {3}".format(
                what,
                "networks" if len(users) > 1 else "a network",
                driver,
                ", ".join(sorted(network["Name"] for network in users)),
            )
        )


def no_engine_here(api: DockerAPI) -> bool:
    """Return whether no engine is installed, as opposed to one that does not answer."""
    return not os.path.lexists(api.socket) and shutil.which(serving(api.socket)[0], path=_PROGRAMS) is None


def the_one(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, of the engine's list of a cluster's containers, the one that runs; else the first.

    A run that was killed may have left others beside it.
    """
    return min(found, key=lambda container: container.get("State") != "running")


def container_names(found: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names in the engine's list of containers, in order."""
    return sorted(map(listed_name, found))


def _seconds(moment: str) -> str:
    """Turn the engine's time (2026-01-02T03:04:05.678901234Z) into seconds since 1970, no digit lost."""
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?", moment)
    if match is None or moment.startswith("0001"):
        return "0"
    whole = calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S"))
    return "{0}{1}".format(whole, match.group(2) or "")
