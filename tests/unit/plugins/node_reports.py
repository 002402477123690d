"""What `node_facts` reports of a sound node, for tests to spoil one thing at a time."""

from __future__ import annotations

import copy
from typing import Any

SOUND: dict[str, Any] = {
    "hostname": "node1",
    "user": {"name": "root", "uid": 0, "home": "/root", "shell": "/bin/bash", "root": True},
    "interfaces": [
        {"name": "lo", "addresses": ["127.0.0.1/8", "::1/128"]},
        {"name": "eth0", "addresses": ["10.0.0.1/24", "fe80::1/64"]},
        {"name": "ib0", "addresses": []},
        {"name": "docker0", "addresses": ["172.17.0.1/16"]},
    ],
    "routes": [
        {
            "table": "main",
            "destination": "default",
            "interface": "eth0",
            "gateway": "10.0.0.254",
            "type": "unicast",
        },
        {
            "table": "main",
            "destination": "10.0.0.0/24",
            "interface": "eth0",
            "gateway": "",
            "type": "unicast",
        },
        {
            "table": "main",
            "destination": "172.17.0.0/16",
            "interface": "docker0",
            "gateway": "",
            "type": "unicast",
        },
    ],
    "ssh": {"client": "10.0.0.9", "server": "10.0.0.1"},
    "docker": {
        "version": "27.4.1",
        "api_version": "1.47",
        "min_api_version": "1.24",
        "default_address_pools": [{"base": "172.17.0.0/16", "size": 16}],
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
            {"id": "h" * 64, "name": "host", "driver": "host", "subnets": [], "options": {}, "labels": {}},
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
    "memlock": {"soft": 65536, "hard": 65536, "raise_allowed": True},
    "shared_memory": 64 * 2**30,
    "gpus": [],
    "accelerator": "cpu",
    "devices": {"kfd": False, "dri": [], "nvidia": [], "rdma_cm": False},
    "nvidia_hook": False,
    "groups": {"video": 44, "render": None, "docker": 998},
    "infiniband": [],
    "sriov": [],
    "rdma": {},
    "parents": [],
    "boot": {},
    "opensm": {},
    "shells": {"bash": True, "zsh": False},
    "strays": [],
    "config_owner": "",
    "origin": {"authority": "", "my_ip": ""},
    "network_plugin": {"systemd": True, "unit": False, "cluster": "", "running": False},
    "in_use": [],
    "lock": {},
    "locked": False,
    "findings": [],
}


def report(**changes: Any) -> dict[str, Any]:
    """A sound node's report with some keys replaced; `docker_x=...` replaces key x of `docker`."""
    found = copy.deepcopy(SOUND)
    for name, value in changes.items():
        if name in found:
            found[name] = value
        else:
            found["docker"][name.removeprefix("docker_")] = value
    return found


def network(name: str, subnet: str, **changes: Any) -> dict[str, Any]:
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


def container(name: str, cluster: str = "", **networks: str) -> dict[str, Any]:
    """A container as `node_facts` reports it; with a cluster's name it carries that cluster's label."""
    labels = {"rdm.provision.cluster": cluster} if cluster else {}
    return {"id": f"id of {name}", "name": name, "labels": labels, "state": "running", "networks": networks}
