# SPDX-License-Identifier: GPL-3.0-or-later
"""Podman as an engine: the differences between its Docker-compatible API and Docker's own.

If the engine is Podman, :class:`DockerAPI` translates requests and answers here, so that all other code uses
Docker's API. What Podman lacks is with its subject: `checks/engine.py` refuses it, `desired/network.py`
leaves out driver options, `container/spec.py` the hook for GPUs, and `node_facts` reports the unit for the
boot. Tested with Podman 4.3; its compatible API is described at
https://docs.podman.io/en/latest/_static/api.html.
"""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any, Callable, Mapping

SOCKET = "/run/podman/podman.sock"
"""The socket of root's Podman, which systemd's podman.socket starts."""

LIBPOD_NETWORKS = "/v4.0.0/libpod/networks/json"
"""Podman's own list of networks. The compatible one lacks a network's parent interface."""

POOLS = (
    ("10.89.0.0/16", 24),
    ("10.90.0.0/15", 24),
    ("10.92.0.0/14", 24),
    ("10.96.0.0/11", 24),
    ("10.128.0.0/9", 24),
)
"""Its default_subnet_pools (containers.conf)."""

LABEL_REQUESTED = "rdm.provision.requested"
"""On a container: the requested settings that Podman does not report, as JSON."""

# Docker's default capabilities that Podman's default lacks.
_CAPABILITIES = ("AUDIT_WRITE", "MKNOD", "NET_RAW")
# Podman's default limit of processes is 2048, which a node's ranks with their data loaders exceed.
_UNLIMITED = -1
_CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_RESTART_UNIT = "podman-restart.service"
# Podman names images without a registry after the first, and Docker Hub's after the second.
_REGISTRIES = ("localhost/", "docker.io/library/", "docker.io/")


def release(version: Mapping[str, Any]) -> str:
    """Return Podman's version from the answer to /version; empty for a Docker Engine."""
    for component in version.get("Components") or []:
        if component.get("Name") == "Podman Engine":
            return str(component.get("Version") or "?")
    return ""


def serving(socket: str) -> tuple[str, ...]:
    """Return the programs that may listen on an engine's socket, the engine's own first.

    Podman has no daemon: systemd listens, and starts it for each request.
    """
    return ("podman", "systemd") if os.path.realpath(socket) == SOCKET else ("dockerd",)


def restarts_at_boot(systemd: str = "/etc/systemd/system") -> bool:
    """Return whether Podman's containers start when the node boots: without a daemon, that needs a unit.

    Args:
        systemd: the directory of the administrator's units.
    """
    return bool(glob.glob(os.path.join(systemd, "*.wants", _RESTART_UNIT)))


# ---- requests


def to_podman(path: str, body: Any) -> Any:
    """Translate the body of a POST from Docker's form to Podman's."""
    if path != "/containers/create":
        return body
    host = dict(body.get("HostConfig") or {})
    policy = (host.get("RestartPolicy") or {}).get("Name") or "no"
    ends = (body.get("NetworkingConfig") or {}).get("EndpointsConfig") or {}
    requested = {
        "policy": policy,
        "sysctls": host.get("Sysctls") or {},
        "addresses": {
            name: end["IPAMConfig"]["IPv4Address"]
            for name, end in ends.items()
            if (end.get("IPAMConfig") or {}).get("IPv4Address")
        },
    }
    host["CapAdd"] = [*(host.get("CapAdd") or []), *_CAPABILITIES]
    host["PidsLimit"] = host.get("PidsLimit") or _UNLIMITED
    labels = dict(body.get("Labels") or {}, **{LABEL_REQUESTED: json.dumps(requested, sort_keys=True)})
    return dict(body, HostConfig=host, Labels=labels)


# ---- answers


def from_podman(path: str, found: Any, networks: Callable[[], list[dict[str, Any]]]) -> Any:
    """Translate Podman's answer to a GET to Docker's form.

    Args:
        path: of the request.
        found: Podman's answer.
        networks: queries Podman's own list of networks.
    """
    if path == "/info":
        return _info(found)
    if path == "/networks":
        parents = _parents(networks())
        return [_network(one, parents) for one in found]
    if path == "/images/json":
        return [_image(one) for one in found]
    if path == "/containers/json":
        return [dict(_attached(one, one), Image=short_name(one.get("Image") or "")) for one in found]
    if re.fullmatch("/networks/[^/]+", path):
        return _network(found, _parents(networks()))
    if re.fullmatch("/images/.+/json", path):
        return _image(found)
    if re.fullmatch("/containers/[^/]+/json", path):
        return _container(found)
    return found


def short_name(image: str) -> str:
    """Return an image's name in Docker's form: debian:12 for docker.io/library/debian:12."""
    prefix = next((one for one in _REGISTRIES if image.startswith(one)), "")
    return image[len(prefix) :]


def _info(found: Mapping[str, Any]) -> dict[str, Any]:
    # Podman ignores NVIDIA's runtime in requests; it provides the GPUs through CDI.
    runtimes = {name: one for name, one in (found.get("Runtimes") or {}).items() if name != "nvidia"}
    return dict(
        found,
        DefaultAddressPools=[{"Base": base, "Size": size} for base, size in POOLS],
        CDISpecDirs=list(_CDI_DIRECTORIES),
        Runtimes=runtimes,
    )


def _parents(networks: list[dict[str, Any]]) -> dict[str, str]:
    """Return the parent interface of each network that has one, by the network's id."""
    return {
        one["id"]: one["network_interface"]
        for one in networks
        if one.get("driver") in ("macvlan", "ipvlan") and one.get("network_interface")
    }


def _network(found: Mapping[str, Any], parents: Mapping[str, str]) -> dict[str, Any]:
    options = dict(found.get("Options") or {})
    if found["Id"] in parents:
        options["parent"] = parents[found["Id"]]
    return dict(found, Options=options)


def _image(found: Mapping[str, Any]) -> dict[str, Any]:
    return dict(found, RepoTags=[short_name(tag) for tag in found.get("RepoTags") or []])


def _container(found: Mapping[str, Any]) -> dict[str, Any]:
    requested = _requested(found["Config"])
    host = dict(found["HostConfig"], PidsLimit=max(0, found["HostConfig"].get("PidsLimit") or 0))
    if requested:
        # Podman reports unless-stopped as always.
        host["RestartPolicy"] = dict(host.get("RestartPolicy") or {}, Name=requested["policy"])
        host["Sysctls"] = requested["sysctls"]
    return dict(_attached(found, found["Config"]), HostConfig=host)


def _attached(found: Mapping[str, Any], labelled: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container with its address on each network, also if it does not run.

    Here Podman reports a network's name as its id.
    """
    requested = (_requested(labelled) or {}).get("addresses") or {}
    settings = dict(found.get("NetworkSettings") or {})
    ends = {}
    for name, end in (settings.get("Networks") or {}).items():
        address = (end or {}).get("IPAddress") or requested.get(name, "")
        ends[name] = dict(end or {}, NetworkID="", IPAMConfig={"IPv4Address": address} if address else None)
    settings["Networks"] = ends
    return dict(found, NetworkSettings=settings)


def _requested(labelled: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requested settings in a container's label; empty if there is none of ours."""
    try:
        found = json.loads((labelled.get("Labels") or {}).get(LABEL_REQUESTED, ""))
        return found if isinstance(found, dict) and {"policy", "sysctls"} <= set(found) else {}
    except ValueError:
        return {}
