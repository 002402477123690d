# SPDX-License-Identifier: GPL-3.0-or-later
"""A Slurm cluster: its hosts and partitions, and what is refused. Pure decisions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.slurm.host_facts import CONFIG_DIR
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.changes import HARDWARE

TOKEN_KEY = f"{CONFIG_DIR}/rdm/jwt.key"
TOKENS = {"AuthAltTypes": "auth/jwt", "AuthAltParameters": f"jwt_key={TOKEN_KEY}"}
DEFAULT_PARTITION = "main"
_CGROUP_2 = 2
_CGROUP_2_SINCE = "22.05"
# Needed by cgroup.conf's options and proctrack/cgroup. Version 2 uses eBPF instead of a devices controller.
_CONTROLLERS = {1: {"cpuset", "devices", "freezer", "memory"}, _CGROUP_2: {"cpuset", "memory"}}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_VALUE = re.compile(r'[^\0-\x20#"]+|"[^\0-\x1f#"]+"')
_TIME = re.compile(r"UNLIMITED|\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}", re.IGNORECASE)
_BASE = 60  # of the numbers that YAML makes of 12:00:00
_LISTEN = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+):([1-9]\d{0,4})")
_LAST_PORT = 65535
_DEVICE = re.compile(r"/dev/[A-Za-z0-9_/.-]+")
# The role sets these itself: from the inventory, or because daemons and files depend on them.
_OWN = frozenset(
    "AccountingStorageHost AccountingStoragePort AccountingStorageType AuthType ClusterName GresTypes "
    "Include NodeName PartitionName Prolog Epilog ProctrackType SlurmctldHost SlurmctldLogFile "
    "SlurmctldPidFile SlurmctldPort SlurmdLogFile SlurmdPidFile SlurmdPort SlurmdSpoolDir SlurmUser "
    "SlurmdUser SrunPortRange StateSaveLocation TaskPlugin".lower().split()
)


@dataclass(frozen=True)
class Host:
    """A host of the cluster.

    Attributes:
        name: in the inventory, and in Slurm.
        address: at which the others reach it.
        facts: what rdm.provision.slurm_facts found.
        cpus: the user's number; 0 for the number found.
        memory: MiB, the user's; 0 for the amount found.
        gpu_type: TYPE of `gpu:TYPE:NUMBER`; empty for none.
        gpu_devices: the user's device files; empty for those of the GPUs found.
        options: further options of its line in slurm.conf.
        health_disk: MiB that must be free in slurmd's spool directory; 0 for any.
        health_ignored_ports: fabric ports that may be down, such as `mlx5_0/1`.
    """

    name: str
    address: str
    facts: Mapping[str, Any]
    cpus: int = 0
    memory: int = 0
    gpu_type: str = ""
    gpu_devices: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    health_disk: int = 0
    health_ignored_ports: Sequence[str] = ()

    @property
    def devices(self) -> list[str]:
        """The device files of its GPUs."""
        return list(self.gpu_devices) or gpu_devices(self.facts.get("gpus") or [])

    @property
    def gres(self) -> str:
        """`gpu:TYPE:NUMBER`, or nothing."""
        kind = f"gpu:{self.gpu_type}" if self.gpu_type else "gpu"
        return f"{kind}:{len(self.devices)}" if self.devices else ""


@dataclass(frozen=True)
class Partition:
    """A partition: its nodes in the inventory's order, and how it is used."""

    name: str
    nodes: tuple[str, ...]
    default: bool = False
    max_time: str = "UNLIMITED"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """A Slurm cluster as the inventory describes it.

    Attributes:
        name: of the cluster.
        controller: the host of slurmctld, slurmdbd and MariaDB.
        login: the host that jobs are submitted from.
        partitions: in the inventory's order.
        hosts: all of them, by name.
        options: the user's options of slurm.conf.
        cgroups: whether cgroups track a job's processes and confine them to its resources.
        hooks: programs that a node runs before and after each job, by option name.
        rest: where slurmrestd listens on the controller, HOST:PORT; empty for no slurmrestd.
    """

    name: str
    controller: str
    login: str
    partitions: tuple[Partition, ...]
    hosts: Mapping[str, Host]
    options: Mapping[str, Any] = field(default_factory=dict)
    cgroups: bool = False
    hooks: Mapping[str, str] = field(default_factory=dict)
    rest: str = ""

    @property
    def nodes(self) -> list[str]:
        """The compute nodes."""
        return list(dict.fromkeys(node for partition in self.partitions for node in partition.nodes))


def controller_of(groups: Mapping[str, Sequence[str]], problems: list[Problem]) -> tuple[str, str]:
    """Return the controller and the login host.

    Args:
        groups: the inventory's groups with their hosts.
        problems: problems are added here.
    """
    chosen = []
    for group in ("slurm_controller", "login"):
        hosts = list(groups.get(group) or [])
        if len(hosts) > 1:
            reason = f"has {len(hosts)} hosts ({names(hosts)})"
            problems.append(Problem(None, f"the group {group}", reason, "leave one of them there"))
        if group in groups and not hosts:
            reason = "is in the inventory and has no host"
            problems.append(Problem(None, f"the group {group}", reason, "put one there, or remove the group"))
        chosen.append(hosts[0] if hosts else "")
    master = next(iter(groups.get("master") or []), "")
    controller = chosen[0] or chosen[1] or master
    return controller, chosen[1] or controller


def partitions_of(
    wanted: Mapping[str, Any],
    groups: Mapping[str, Sequence[str]],
    nodes: Sequence[str],
    problems: list[Problem],
) -> tuple[Partition, ...]:
    """Return the partitions.

    Args:
        wanted: `slurm_partitions`; empty for one partition of all nodes.
        groups: the inventory's groups with their hosts.
        nodes: the cluster's nodes, in the inventory's order.
        problems: problems are added here.
    """
    if not wanted:
        return (Partition(DEFAULT_PARTITION, tuple(nodes), default=True),)
    found = []
    for name, value in wanted.items():
        what = f"slurm_partitions: {name}"
        if not _NAME.fullmatch(str(name)) or str(name).lower() == "default":
            hint = "use letters, digits, '_' and '-', beginning with a letter or digit, and not 'default'"
            problems.append(Problem(None, what, "is no name for a partition", hint))
            continue
        listed = value.get("groups") if isinstance(value, Mapping) else None
        if not isinstance(listed, list) or not listed or not all(isinstance(group, str) for group in listed):
            hint = f"write {name}: {{groups: [GROUP]}}"
            problems.append(Problem(None, what, "names no groups of hosts", hint))
            continue
        members: list[str] = []
        for group in value["groups"]:
            if group in groups:
                members += groups[group]
                continue
            close = difflib.get_close_matches(str(group), [*groups], n=1)
            hint = f"did you mean {close[0]}?" if close else f"the groups are {names(sorted(groups))}"
            problems.append(
                Problem(None, what, f"is of the group {group!r}, which the inventory lacks", hint)
            )
        outside = [host for host in dict.fromkeys(members) if host not in nodes]
        if outside:
            hint = "put them into workers as well"
            problems.append(Problem(None, what, f"has hosts that are no nodes: {names(outside)}", hint))
        limit = value.get("max_time") or "UNLIMITED"
        max_time = str(limit)
        if not _TIME.fullmatch(max_time):
            hint = "write minutes, hours:minutes:seconds, or days-hours:minutes:seconds, in quotes"
            problems.append(Problem(None, what, f"has the max_time {limit!r}, which is no time", hint))
        elif isinstance(limit, int) and limit >= _BASE:
            hint = f"put the time in quotes: '{limit}' for minutes, or as '12:00:00'"
            reason = f"has the max_time {limit}, which YAML may have read from a time such as 12:00:00"
            problems.append(Problem(None, what, reason, hint))
        options = value.get("options") or {}
        _check_options(
            f"{what}: options", options, problems, {"nodes", "default", "maxtime", "partitionname"}
        )
        unknown = [key for key in value if key not in ("groups", "default", "max_time", "options")]
        if unknown:
            hint = "it has groups, default, max_time and options"
            problems.append(Problem(None, what, f"has {names(map(str, unknown))}, which is unknown", hint))
        try:
            default = boolean(value.get("default") or False)
        except TypeError:
            reason = f"has the default {value['default']!r}, which is not true or false"
            problems.append(Problem(None, what, reason, "write default: true, or leave it out"))
            continue
        chosen = tuple(node for node in nodes if node in members)
        if not chosen and all(group in groups for group in value["groups"]):
            hint = "put nodes into its groups, or remove it"
            problems.append(Problem(None, what, "has no nodes", hint))
        found.append(Partition(str(name), chosen, default, max_time, options))
    several = [partition.name for partition in found if partition.default]
    if len(several) > 1:
        reason = f"has {len(several)} defaults ({names(several)})"
        problems.append(Problem(None, "slurm_partitions", reason, "leave one of them"))
    inside = {node for partition in found for node in partition.nodes}
    for node in nodes:
        if node not in inside and not problems:
            hint = "name one of its groups in slurm_partitions"
            problems.append(Problem(node, "", "is in no partition, so no job could ever run there", hint))
    return tuple(found)


def _check_options(what: str, options: Any, problems: list[Problem], own: Iterable[str] = ()) -> None:
    if not isinstance(options, Mapping):
        problems.append(Problem(None, what, "is no dictionary", "write NAME: value, one a line"))
        return
    for key, value in options.items():
        if not _KEY.fullmatch(str(key)):
            problems.append(Problem(None, f"{what}: {key}", "is no name of an option", "see man slurm.conf"))
        elif str(key).lower() in own:
            hint = "leave it out: it follows from the inventory"
            problems.append(Problem(None, f"{what}: {key}", "is the role's own", hint))
        elif isinstance(value, bool) or not isinstance(value, str | int | float):
            hint = "write one word in quotes, such as 'NO'"
            problems.append(Problem(None, f"{what}: {key}", f"is {value!r}, and no word of slurm.conf", hint))
        elif not _VALUE.fullmatch(str(value)):
            hint = "write one word, without '#'; several words in double quotes"
            problems.append(
                Problem(None, f"{what}: {key}", f"has the value {value!r}, which cannot be written", hint)
            )


def check(cluster: Cluster) -> list[Problem]:
    """Return what is wrong with a cluster, from the facts of its hosts."""
    problems: list[Problem] = []
    own = {*_OWN, *(name.lower() for name in TOKENS)} if cluster.rest else _OWN
    _check_options("slurm_options", cluster.options, problems, own)
    problems += _check_rest(cluster)
    for host in cluster.hosts.values():
        foreign = host.facts.get("foreign")
        if foreign:
            hint = "use that one as it is; or remove it from the host, or the host from the inventory"
            problems.append(
                Problem(host.name, foreign, "and is not of rdm-provision, so it is not touched", hint)
            )
        owner = host.facts.get("owner") or cluster.name
        if owner != cluster.name:
            hint = f"take that down first, or set rdm_cluster: {owner}"
            problems.append(Problem(host.name, "its Slurm", f"is of the cluster {owner}", hint))
    versions: dict[str, list[str]] = {}
    for host in cluster.hosts.values():
        version = release(host.facts.get("version") or host.facts.get("candidate") or "")
        if not version:
            hint = "add the package sources that have it"
            problems.append(Problem(host.name, "", "has no package of Slurm and finds none to install", hint))
        else:
            versions.setdefault(version, []).append(host.name)
    if len(versions) > 1:
        output = "; ".join(f"{version} on {names(who, 3)}" for version, who in sorted(versions.items()))
        hint = "give all hosts the same release"
        problems.append(Problem(None, "Slurm", f"differs between hosts: {output}", hint))
    for name in cluster.nodes:
        problems += _check_node(cluster.hosts[name])
        if cluster.cgroups and (why := without_cgroups(cluster.hosts[name].facts)):
            hint = "leave slurm_cgroups at auto, or set it to false"
            problems.append(Problem(name, "", f"{why} (slurm_cgroups is true)", hint))
    return problems


def _check_rest(cluster: Cluster) -> list[Problem]:
    if not cluster.rest:
        return []
    problems = []
    listens = _LISTEN.fullmatch(cluster.rest)
    if not listens or int(listens[2]) > _LAST_PORT:
        what = f"slurm_rest_address {cluster.rest!r}"
        problems.append(Problem(None, what, "is no address", "write HOST:PORT, such as 127.0.0.1:6820"))
    if not cluster.hosts[cluster.controller].facts["systemd"]:
        hint = "leave slurm_rest out"
        reason = "needs systemd, which keeps slurmrestd running, and the host has none"
        problems.append(Problem(cluster.controller, "slurm_rest", reason, hint))
    return problems


def _check_node(host: Host) -> list[Problem]:
    problems: list[Problem] = []
    own = {key.lower() for key in (*HARDWARE, "NodeName", "NodeAddr", "NodeHostname", "State")}
    _check_options("slurm_node_options", host.options, problems, own)
    if host.gpu_type and not _NAME.fullmatch(host.gpu_type):
        hint = "use letters, digits, '_' and '-'"
        problems.append(Problem(None, f"slurm_gpu_type {host.gpu_type!r}", "is no name of a type", hint))
    if host.gpu_type and not host.devices:
        reason = f"is set, and no GPU with a driver was found (slurm_gpu_type: {host.gpu_type})"
        hint = "install its driver, or set slurm_gpu_devices to the device files"
        problems.append(Problem(None, "GRES gpu", reason, hint))
    bad = [device for device in host.devices if not _DEVICE.fullmatch(str(device))]
    if bad:
        hint = "write paths such as /dev/nvidia0"
        problems.append(
            Problem(None, "slurm_gpu_devices", f"has {names(map(str, bad))}, no device file", hint)
        )
    missing = [device for device in host.devices if device in (host.facts.get("missing_devices") or [])]
    if missing:
        hint = "load the driver that makes it, or leave it out of slurm_gpu_devices"
        problems.append(Problem(None, "GRES gpu", f"has a device that is not there: {names(missing)}", hint))
    return [Problem(host.name, *problem[1:]) for problem in problems]


def gpu_devices(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the device files of the GPUs with a compute driver, in the order of their PCI addresses.

    Args:
        gpus: as rdm.provision.node_facts returns them.
    """
    amd = [gpu["render_node"] for gpu in gpus if gpu["driver"] == "amdgpu" and gpu["render_node"]]
    nvidia = [gpu for gpu in gpus if gpu["driver"] == "nvidia"]
    return amd if len(amd) > len(nvidia) else [f"/dev/nvidia{number}" for number, _ in enumerate(nvidia)]


def release(version: str) -> str:
    """Return the release of a Slurm version, `22.05` for `22.05.8-4`; its daemons work together."""
    match = re.match(r"(?:\d+:)?(\d+\.\d+)", version)
    return match[1] if match else ""


def cgroups_work(facts: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether slurmd can use control groups on all nodes."""
    return not any(map(without_cgroups, facts))


def without_cgroups(facts: Mapping[str, Any]) -> str:
    """Return why slurmd cannot use control groups on a node; empty if it can.

    Args:
        facts: what rdm.provision.slurm_facts found.
    """
    found = facts.get("cgroup") or {}
    version, controllers = found.get("version") or 0, set(found.get("controllers") or [])
    slurm = release(facts.get("version") or facts.get("candidate") or "")
    if not facts.get("systemd"):
        return "has no systemd, which gives slurmd a control group"
    if version not in _CONTROLLERS:
        return "has no control groups"
    if version == _CGROUP_2 and slurm and _number(slurm) < _number(_CGROUP_2_SINCE):
        return (
            f"has control groups of version 2, which Slurm knows since {_CGROUP_2_SINCE}, and Slurm {slurm}"
        )
    if missing := sorted(_CONTROLLERS[version] - controllers):
        return f"has no controller {', '.join(missing)} among its control groups (version {version})"
    return ""


def cgroup_plugin(facts: Iterable[Mapping[str, Any]]) -> str:
    """Return the value of CgroupPlugin; where nodes differ, slurmd detects it.

    Args:
        facts: what rdm.provision.slurm_facts found on each node.
    """
    there = list(facts)
    versions = {(one.get("cgroup") or {}).get("version") for one in there}
    if any(
        _number(release(one.get("version") or one.get("candidate") or "")) < _number(_CGROUP_2_SINCE)
        for one in there
    ):
        # An older Slurm has one plugin, and no option to choose it.
        return ""
    return f"cgroup/v{versions.pop()}" if len(versions) == 1 and versions <= {1, 2} else "autodetect"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")) if version else ()
