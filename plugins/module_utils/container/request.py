# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired training container, as a request to the engine, and compared with the existing container.

The engine can change a container's limits, restart policy and networks, and nothing else. A label keeps the
requested settings, since an engine shows some of them in another form. Of the environment the label has only
the names: values may be secret, and labels are shown in many places.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible.module_utils.common.text.formatters import human_to_bytes
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import labels
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import FORMER_VF, VF

LABEL_SETTINGS = "rdm.provision.settings"

SETTINGS = (
    *("image", "command", "hostname", "network", "my_ip", "env", "volumes", "devices", "device_requests"),
    *("groups", "ulimits", "capabilities", "security_opts", "ipc_mode", "userns_mode", "shm_size"),
    *("stop_timeout", "reads", "rails", "vfs"),
)
"""The settings whose change requires another container, and those of its VFs."""

_LATER = ("rails", "vfs")
"""Settings that containers of an earlier version lack; they are recorded only if they are not empty."""

NEEDED = {*SETTINGS, *("name", "cluster", "plugin_socket", "rdma", "restart_policy", "ready_line")} - {"vfs"}
"""The required keys of the desired container."""

_MAC_OF_ENDPOINT = (1, 44)
"""Since this API version an endpoint has a hardware address; before, only a container had one."""

# By default Linux answers ARP for an address on any interface. Where two rails share a broadcast domain,
# packets for one would arrive on the other (`ip-sysctl.rst` of the kernel).
_SYSCTLS_OF_RAILS = {"net.ipv4.conf.all.arp_announce": "2", "net.ipv4.conf.all.arp_ignore": "1"}

# Limits that `docker update` changes. We set none of them.
_LIMITS = (
    *("BlkioWeight", "CpuShares", "CpuPeriod", "CpuQuota", "CpuRealtimePeriod", "CpuRealtimeRuntime"),
    *("CpusetCpus", "CpusetMems", "KernelMemory", "Memory", "MemoryReservation", "MemorySwap", "NanoCpus"),
    "PidsLimit",
)


class Difference(NamedTuple):
    """How a container differs from the desired one.

    Attributes:
        before: its settings that differ: setting -> value.
        after: the desired values.
        recreate_needed: whether the container has to be recreated.
        policy: whether its restart policy differs.
        extra_networks: the networks that it has to leave.
    """

    before: Dict[str, Any]
    after: Dict[str, Any]
    recreate_needed: bool
    policy: bool
    extra_networks: List[str]


def ends(wanted: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """Return the container's networks, and its address on each; that of MY_IP first."""
    return [(wanted["network"], wanted["my_ip"]), *(wanted.get("rails") or {}).items()]


def endpoint(wanted: Mapping[str, Any], network: str, api: Tuple[int, ...]) -> Dict[str, Any]:
    """Return the endpoint settings of the container on a network, in the engine's form.

    Args:
        wanted: the desired container, with `vfs`.
        network: the network's name.
        api: version of the engine's API.
    """
    mac = _mac(wanted, network)
    vf = _of_vf(wanted, network, "vf")
    return {
        "IPAMConfig": {"IPv4Address": dict(ends(wanted))[network]},
        **({"MacAddress": mac} if mac and api >= _MAC_OF_ENDPOINT else {}),
        # Until 0.8.0 the former name, too: the plugin may be another cluster's, of a release before 0.6.0.
        **({"DriverOpts": {VF: vf, FORMER_VF: vf}} if vf else {}),
    }


def request(wanted: Mapping[str, Any], api: Tuple[int, ...] = (1, 41)) -> Dict[str, Any]:
    """Return the body of the request that creates the container on the first of its networks.

    Args:
        wanted: the desired container, with `vfs`.
        api: version of the engine's API.
    """
    of_vfs = [path for one in (wanted.get("vfs") or {}).values() for path in one.get("devices") or []]
    devices = [_device(device) for device in wanted["devices"]]
    has = {device["PathOnHost"] for device in devices}
    devices += [_device(path) for path in dict.fromkeys(of_vfs) if path not in has]
    # RDMA needs locked memory.
    lock = ["IPC_LOCK"] * bool(of_vfs and "IPC_LOCK" not in wanted["capabilities"])
    host: Dict[str, Any] = {
        "Binds": [_bind(volume) for volume in wanted["volumes"]],
        "CapAdd": wanted["capabilities"] + lock,
        "DeviceRequests": [_device_request(one) for one in wanted["device_requests"]],
        "Devices": devices,
        "GroupAdd": wanted["groups"],
        "Init": True,
        "IpcMode": wanted["ipc_mode"],
        "NetworkMode": wanted["network"],
        "RestartPolicy": {"Name": wanted["restart_policy"]},
        "SecurityOpt": wanted["security_opts"],
        "Sysctls": _sysctls(wanted),
        "Ulimits": [_ulimit(limit) for limit in wanted["ulimits"]],
        "UsernsMode": wanted["userns_mode"],
    }
    if wanted["shm_size"]:
        host["ShmSize"] = human_to_bytes(wanted["shm_size"])
    network = wanted["network"]
    mac = _mac(wanted, network) if api < _MAC_OF_ENDPOINT else ""
    return {
        "Image": wanted["image"],
        "Cmd": wanted["command"],
        "Hostname": wanted["hostname"],
        "Env": ["{0}={1}".format(name, value) for name, value in wanted["env"].items()],
        "Labels": dict(labels(wanted["cluster"], "container"), **{LABEL_SETTINGS: _label(wanted)}),
        "StopTimeout": wanted["stop_timeout"],
        "HostConfig": host,
        "NetworkingConfig": {"EndpointsConfig": {network: endpoint(wanted, network, api)}},
        **({"MacAddress": mac} if mac else {}),
    }


def difference(
    wanted: Mapping[str, Any],
    found: Mapping[str, Any],
    image: str = "",
    networks: Optional[Mapping[str, str]] = None,
) -> Difference:
    """Compare a container with the desired one.

    Args:
        wanted: the desired container, with `vfs`.
        found: the container as the engine shows it.
        image: ID of the image that its name refers to now; empty if unknown.
        networks: name -> ID of its networks, without unknown ones.
    """
    before = settings_of(found)
    after = {name: (wanted.get(name) or None) if name in _LATER else wanted[name] for name in SETTINGS}
    if not before:
        before, after = {"made by": "another version"}, {"made by": "this version"}
    if image and found["Image"] != image:
        before["image ID"], after["image ID"] = found["Image"], image
    host = found["HostConfig"]
    for limit in _LIMITS:
        if host.get(limit):
            before[limit], after[limit] = host[limit], None
    if (host.get("Sysctls") or {}) != _sysctls(wanted):
        before["sysctls"], after["sysctls"] = host.get("Sysctls") or {}, _sysctls(wanted)
    on = found["NetworkSettings"].get("Networks") or {}
    for network, address in ends(wanted):
        what = "" if network == wanted["network"] else " " + network
        differs = _end_differs(on.get(network), address, (networks or {}).get(network, ""))
        for name, (was, becomes) in differs.items():
            before[name + what], after[name + what] = was, becomes
    differing = [name for name in after if before.get(name) != after[name]]
    policy = (host.get("RestartPolicy") or {}).get("Name") != wanted["restart_policy"]
    extra = sorted(set(on) - set(dict(ends(wanted))))
    before = {name: before.get(name) for name in differing}
    after = {name: after[name] for name in differing}
    if policy:
        before["restart_policy"] = (host.get("RestartPolicy") or {}).get("Name")
        after["restart_policy"] = wanted["restart_policy"]
    if extra:
        before["further networks"], after["further networks"] = extra, []
    return Difference(before, after, bool(differing), policy, extra)


def _end_differs(end: Any, address: str, network: str) -> Dict[str, Tuple[Any, Any]]:
    """Return how a container's endpoint on a network differs: what -> (is, should be)."""
    if end is None:
        return {"on the network": (False, True)}
    if network and end.get("NetworkID") and end["NetworkID"] != network:
        return {"network ID": (end["NetworkID"], network)}
    has = (end.get("IPAMConfig") or {}).get("IPv4Address")
    return {"address": (has, address)} if has != address else {}


def settings_of(found: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the settings in a container's label; empty if there are none."""
    try:
        settings = json.loads((found["Config"].get("Labels") or {}).get(LABEL_SETTINGS, ""))
        if "functions" in settings:  # its name before 0.6.0
            settings["vfs"] = {
                network: {"vf" if name == "function" else name: value for name, value in one.items()}
                for network, one in settings.pop("functions").items()
            }
        # Variables that we set override the image's.
        has = dict(line.split("=", 1) for line in found["Config"].get("Env") or [] if "=" in line)
        return dict(settings, env={name: has.get(name) for name in settings["env"]})
    except (ValueError, TypeError, KeyError):
        return {}


def _sysctls(wanted: Mapping[str, Any]) -> Dict[str, str]:
    return dict(_SYSCTLS_OF_RAILS) if wanted.get("rails") else {}


def _mac(wanted: Mapping[str, Any], network: str) -> str:
    return _of_vf(wanted, network, "mac")


def _of_vf(wanted: Mapping[str, Any], network: str, what: str) -> str:
    return str(((wanted.get("vfs") or {}).get(network) or {}).get(what) or "")


def _label(wanted: Mapping[str, Any]) -> str:
    settings = {name: wanted[name] for name in SETTINGS if name not in _LATER}
    settings.update({name: wanted[name] for name in _LATER if wanted.get(name)})
    return json.dumps(dict(settings, env=sorted(wanted["env"])), sort_keys=True)


def _bind(volume: str) -> str:
    return os.path.expanduser(volume) if volume.startswith("~") else volume


def _device(text: str) -> Dict[str, str]:
    """Parse `path on the node[:path in the container[:rwm]]`, or `path:rwm`, into the engine's form."""
    path, *rest = text.split(":")
    inside = rest.pop(0) if rest and rest[0].startswith("/") else path
    return {"PathOnHost": path, "PathInContainer": inside, "CgroupPermissions": rest[0] if rest else "rwm"}


def _device_request(given: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        "Driver": given.get("driver") or "",
        "Count": int(given.get("count") or 0),
        "DeviceIDs": [str(one) for one in given.get("device_ids") or []],
        "Capabilities": given.get("capabilities") or [],
        "Options": given.get("options") or {},
    }


def _ulimit(text: str) -> Dict[str, Any]:
    name, soft, *hard = text.split(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard[0] if hard else soft)}
