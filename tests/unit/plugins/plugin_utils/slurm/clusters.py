"""A Slurm cluster of three nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.cluster import Cluster, Host, Partition

GROUPS = {"all": [], "master": ["n1"], "workers": ["n2", "n3"], "hgx": ["n1"], "gpu2": ["n2", "n3"]}
NODES = ["n1", "n2", "n3"]
PACKAGES = dict.fromkeys(
    ("munge", "client", "slurmd", "slurmctld", "slurmdbd", "slurmrestd", "jwt", "mariadb"), "22.05.8-4"
)
FACTS: dict[str, Any] = {
    "hostname": "n1",
    "systemd": True,
    "manager": "apt",
    "packages": PACKAGES,
    "names": {name: f"deb-{name}" for name in PACKAGES},
    "version": "22.05.8-4",
    "candidate": "",
    "cpus": {"cpus": 128, "sockets": 2, "cores": 32, "threads": 2},
    "memory": 515_000,
    "gpus": [],
    "missing_devices": [],
    "cgroup": {"version": 2, "controllers": ["cpuset", "cpu", "io", "memory", "pids"]},
    "health": {"drivers": [], "ports": []},
    "owner": "",
    "foreign": "",
    "munge_key": "",
    "conf": "",
    "jobs": [],
    "running": [],
}
NVIDIA = [{"driver": "nvidia", "render_node": f"/dev/dri/renderD{128 + n}"} for n in range(8)]


def host(name: str, facts: dict[str, Any] | None = None, **more: Any) -> Host:
    return Host(name, f"10.0.0.{name[1:]}", {**FACTS, "hostname": name, **(facts or {})}, **more)


def cluster(*hosts: Host, **more: Any) -> Cluster:
    given_ = {one.name: one for one in hosts}
    partitions = (Partition("hgx", ("n1",), default=True), Partition("gpu2", ("n2", "n3"), max_time="2-0"))
    all_hosts = {name: given_.get(name) or host(name) for name in NODES}
    return replace(Cluster("c1", "n1", "n1", partitions, all_hosts), **more)


def report(problems: list[Problem]) -> str:
    return "\n".join(f"{problem.node}: {problem.sentence}" for problem in problems)


JOBS = [{"id": "7", "state": "RUNNING", "partition": "gpu2", "nodes": "n[2-3]"}]
