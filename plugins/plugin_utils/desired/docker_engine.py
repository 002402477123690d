# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired Docker Engine of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NodeFacts
from ansible_collections.rdm.provision.plugins.module_utils.docker import podman
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

_PIDFILE, _LOG = "/run/rdm-dockerd.pid", "/var/log/rdm-dockerd.log"


class DesiredEngine(NamedTuple):
    """Desired state of the role docker_engine.

    Attributes:
        socket: the socket that the user set; empty for the default.
        users: who may use the engine.
        packages: the packages to install; none for the distribution's.
    """

    socket: str
    users: list[str]
    packages: list[str]


def desired_docker_engine(variables: NodeVariables, _entry: PlanEntry) -> DesiredEngine:
    """Return the desired engine of a node."""
    return DesiredEngine(
        socket=variables.text("rdm_docker_socket"),
        users=variables.texts("docker_engine_users"),
        packages=variables.texts("docker_engine_packages"),
    )


def docker_engine_steps(
    part: DesiredEngine, variables: NodeVariables, _entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return what the role's tasks read in addition to the part.

    `answers` is whether the engine does, `ready` whether modules can use it too. `reason` is why not, and
    `problem` why nothing is installed. `missing` are packages, `units` those of systemd. `start` is the
    command that starts `daemon` without systemd, with `pidfile` and `log`. `see` says where it logs.
    """
    facts, is_podman = observed.facts, part.socket == podman.SOCKET
    state, requests = facts.get("docker_state"), facts.get("python_requests", False)
    answers = state == "ok"
    reason = "Python lacks the library requests, which the modules of community.docker need"
    reason = reason if answers else facts.get("docker_error", "")
    # Podman has no daemon: one unit serves its API, and the other starts its containers at boot.
    units = ["podman.socket", "podman-restart.service"] if is_podman else ["docker.service"]
    command = (
        ["podman", "system", "service", "--time=0", f"unix://{part.socket}"] if is_podman else ["dockerd"]
    )
    packages = part.packages or _packages(is_podman, observed.variables.get("ansible_facts") or {})
    systemd = (observed.result("__docker_engine_systemd").get("stat") or {}).get("exists")
    return {
        "answers": answers,
        "ready": answers and requests,
        "reason": reason,
        "problem": _problem(facts, reason, variables.true("docker_engine_install")),
        "missing": [*(packages if state == "absent" else ()), *(() if requests else ("python3-requests",))],
        "units": units,
        "daemon": command[0],
        "pidfile": _PIDFILE,
        "log": _LOG,
        # env finds dockerd, which Debian and Docker install in different places. TMPDIR is unset, since the
        # engine would keep a temporary directory of this session.
        "start": [
            *("start-stop-daemon", "--start", "--background", "--make-pidfile", f"--pidfile={_PIDFILE}"),
            *(f"--name={command[0]}", f"--output={_LOG}", "--startas=/usr/bin/env", "--", "-u", "TMPDIR"),
            *command,
        ],
        "see": f"the journal of {units[0]}" if systemd else _LOG,
    }


def _problem(facts: NodeFacts, reason: str, may_install: bool) -> str:
    """Return why no engine is installed; empty if it may be."""
    user = facts.get("user") or {}
    if may_install and user.get("root"):
        return ""
    if facts.get("docker_state") == "forbidden":
        return reason
    if not may_install:
        return f"{reason}; install and start it, or set docker_engine_install to true"
    return f"{reason}; only root can install and start it, and this is user {user.get('name', '')}"


def _packages(is_podman: bool, system: Mapping[str, Any]) -> list[str]:
    """Return the distribution's packages of the engine."""
    apt = system.get("pkg_mgr") == "apt"
    if is_podman:
        return ["podman", *(("netavark", "aardvark-dns", "catatonit", "crun") if apt else ())]
    return ["docker.io" if apt else "moby-engine" if system.get("distribution") == "Fedora" else "docker-ce"]
