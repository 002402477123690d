"""What `node_facts` reports of a sound node, for tests that change one value at a time."""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState


def interface(name: str, *addresses: str, mac: str = "") -> Any:
    """An interface as `node_facts` reports it."""
    return {"name": name, "mac": mac, "addresses": list(addresses)}


SOUND: ObservedState = {
    "hostname": "node1",
    "architecture": "x86_64",
    "distribution": {"id": "debian", "version": "12", "name": "Debian GNU/Linux 12 (bookworm)"},
    "user": {"name": "root", "uid": 0, "home": "/root", "shell": "/bin/bash", "root": True},
    "interfaces": [
        interface("lo", "127.0.0.1/8", "::1/128"),
        interface("eth0", "10.0.0.1/24", "fe80::1/64"),
        interface("ib0"),
        interface("docker0", "172.17.0.1/16"),
    ],
    "routes": [
        {
            "table": "main",
            "destination": "default",
            "interface": "eth0",
            "gateway": "10.0.0.254",
        },
        {
            "table": "main",
            "destination": "10.0.0.0/24",
            "interface": "eth0",
            "gateway": "",
        },
        {
            "table": "main",
            "destination": "172.17.0.0/16",
            "interface": "docker0",
            "gateway": "",
        },
    ],
    "ssh": {"client": "10.0.0.9", "server": "10.0.0.1"},
    "docker": {
        "engine": "docker",
        "socket": "/var/run/docker.sock",
        "version": "27.4.1",
        "api_version": "1.47",
        "min_api_version": "1.24",
        "log_driver": "local",
        "image_store": "containerd",
        "image_dir": "/var/lib/docker",
        "network_plugins": ["bridge", "host", "ipvlan", "macvlan"],
        "security_options": ["seccomp"],
        "nvidia": [],
        "default_address_pools": ["172.17.0.0/16"],
        "registry_mirrors": [],
        "added_mirrors": [],
        "swarm_address_pools": [],
        "networks": [
            {
                "id": "b" * 64,
                "name": "bridge",
                "driver": "bridge",
                "subnets": [{"subnet": "172.17.0.0/16", "gateway": "172.17.0.1"}],
                "options": {"com.docker.network.bridge.name": "docker0"},
                "labels": {},
                "containers": [],
            },
            {
                "id": "h" * 64,
                "name": "host",
                "driver": "host",
                "subnets": [],
                "options": {},
                "labels": {},
                "containers": [],
            },
        ],
        "containers": [],
        "images": [],
    },
    "docker_error": "",
    "other_engines": [],
    "pools_to_come": [],
    "kubernetes": {"name": "", "ranges": []},
    "docker_state": "ok",
    "python_requests": True,
    "unreachable_mirrors": {},
    "foreign_mirror_files": {},
    "disk": {"path": "/var/lib/docker", "total": 200 * 2**30, "free": 100 * 2**30},
    "memlock": {"hard": 65536, "raise_allowed": True},
    "shared_memory": 64 * 2**30,
    "gpus": [],
    "accelerator": "cpu",
    "devices": {"kfd": False, "dri": [], "nvidia": [], "rdma_cm": False, "groups": []},
    "nvidia_hook": False,
    "groups": {"video": 44, "render": None, "docker": 998},
    "infiniband": [],
    "sriov": [],
    "rdma": {},
    "fabric_interfaces": [],
    "driverless": [],
    "boot": {},
    "opensm": {},
    "shells": {"bash": True, "zsh": False},
    "strays": [],
    "config_dir": {"path": "/etc/rdm", "why": ""},
    "config_owner": "",
    "origin": {"authority": "", "my_ip": ""},
    "network_plugin": {
        "systemd": True,
        "unit": False,
        "cluster": "",
        "socket": "",
        "served_by": "",
    },
    "hardware": "sha256:0f343b0931126a20",
    "work": {},
    "in_use": [],
    "lock": {},
    "locked": False,
    "findings": [],
}


WHOLE: dict[str, Any] = {
    "interfaces": interface(""),
    "routes": {"table": "main", "destination": "", "interface": "", "gateway": ""},
    "infiniband": {
        **dict.fromkeys(("name", "node_guid", "firmware", "board_id", "type", "driver"), ""),
        **{"driver_version": "", "pci": "", "virtual": False, "char_devices": [], "netdevs": [], "ports": []},
    },
}
"""What an entry of a list has that a test does not name."""


def report(**changes: Any) -> Any:
    """A sound node's report with some keys replaced; `docker_x=...` replaces key x of `docker`."""
    found: Any = copy.deepcopy(SOUND)
    for name, value in changes.items():
        if name in WHOLE:
            found[name] = [{**WHOLE[name], **one} for one in value]
        elif name in found:
            found[name] = {**found[name], **value} if isinstance(value, dict) else value
        else:
            found["docker"][name.removeprefix("docker_")] = value
    return found


def network(name: str, subnet: str, **changes: Any) -> Any:
    """A Docker network as `node_facts` reports it."""
    sound = {
        "id": "abcdef123456" + "0" * 52,
        "name": name,
        "driver": "macvlan",
        "subnets": [{"subnet": subnet, "gateway": ""}],
        "options": {"parent": "ib0"},
        "labels": {},
        "containers": [],
    }
    return {**sound, **changes}


def container(name: str, cluster: str = "", **networks: str) -> Any:
    """A container as `node_facts` reports it; with a cluster's name it carries that cluster's label."""
    labels = {"rdm.provision.cluster": cluster} if cluster else {}
    return {
        "id": f"id of {name}",
        "name": name,
        "image": "",
        "labels": labels,
        "state": "running",
        "networks": networks,
        "job_directory": "",
        "jobs": [],
    }
