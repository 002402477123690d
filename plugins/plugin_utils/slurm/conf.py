# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of each configuration file of a Slurm cluster. Pure decisions.

Formats and meanings: slurm.conf(5), gres.conf(5), cgroup.conf(5), slurmdbd.conf(5) of Slurm 22.05 to 24.11.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.cluster import (
    TOKENS,
    Cluster,
    Host,
    Partition,
    cgroup_plugin,
)

STATE_DIR = "/var/lib/slurm"
PORTS = {"slurmctld": 6817, "slurmd": 6818, "slurmdbd": 6819}
SRUN_PORTS = "60001-63000"
DATABASE_PREFIX = "rdm_slurm_"
# Slurm drains a node that has less memory than configured, and the kernel's own share changes with updates.
MEMORY_SHARE = 0.97
MEMORY_STEP_MIB = 100
# `scontrol reconfigure` applies these and partitions; any other change restarts the daemons.
# Running jobs continue either way.
_RELOADED = frozenset(
    "DefMemPerCPU DefMemPerNode MaxMemPerCPU MaxMemPerNode InactiveLimit KillWait MessageTimeout "
    "MinJobAge PrologEpilogTimeout ResumeTimeout ReturnToService SchedulerParameters SlurmctldDebug "
    "SlurmctldTimeout SlurmdDebug SlurmdTimeout UnkillableStepTimeout PriorityDecayHalfLife "
    "PriorityWeightAge PriorityWeightFairshare PriorityWeightJobSize PriorityWeightPartition "
    "PriorityWeightQOS PartitionName DebugFlags".lower().split()
)


def header(cluster: Cluster) -> str:
    """Return the first line of each file, which marks it as ours."""
    return f"# Written by rdm-provision for the cluster {cluster.name}; `slurm up` writes it again.\n"


def slurm_conf(cluster: Cluster) -> str:
    """Return the text of slurm.conf."""
    hosts = [cluster.hosts[name] for name in cluster.nodes]
    controller = cluster.hosts[cluster.controller]
    kinds = sorted({host.gpu_type for host in hosts if host.devices and host.gpu_type})
    tracked = (
        ["gres/gpu", *(f"gres/gpu:{kind}" for kind in kinds)] if any(host.devices for host in hosts) else []
    )
    settings: dict[str, Any] = {
        "ClusterName": cluster.name,
        "SlurmctldHost": f"{controller.facts['hostname']}({controller.address})",
        "SlurmUser": "slurm",
        "AuthType": "auth/munge",
        **(TOKENS if cluster.rest else {}),
        "StateSaveLocation": f"{STATE_DIR}/slurmctld",
        "SlurmdSpoolDir": f"{STATE_DIR}/slurmd",
        "SlurmctldPidFile": "/run/slurmctld.pid",
        "SlurmdPidFile": "/run/slurmd.pid",
        "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
        "SlurmdLogFile": "/var/log/slurm/slurmd.log",
        "SlurmctldPort": PORTS["slurmctld"],
        "SlurmdPort": PORTS["slurmd"],
        "SrunPortRange": SRUN_PORTS,
        "SlurmctldParameters": "enable_configless",
        "ReturnToService": 2,
        "MpiDefault": "none",
        "ProctrackType": "proctrack/cgroup" if cluster.cgroups else "proctrack/linuxproc",
        "TaskPlugin": "task/cgroup,task/affinity" if cluster.cgroups else "task/affinity",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": min((memory(host) // max(1, cpus(host)) for host in hosts), default=0),
        "PrologFlags": "Alloc",
        **cluster.hooks,
        "GresTypes": "gpu" if tracked else "",
        "JobAcctGatherType": "jobacct_gather/linux",
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": controller.address,
        "AccountingStorageTRES": ",".join(tracked),
        "AccountingStoreFlags": "job_comment,job_script",
        "JobCompType": "jobcomp/none",
    }
    own = {name.lower(): name for name in settings}
    for name, value in cluster.options.items():
        settings[own.get(str(name).lower(), str(name))] = value
    if "enable_configless" not in str(settings["SlurmctldParameters"]):
        settings["SlurmctldParameters"] = f"enable_configless,{settings['SlurmctldParameters']}"
    lines = [f"{name}={value}" for name, value in settings.items() if str(value) != ""]
    lines += ["", *(node_line(host) for host in hosts), ""]
    lines += [partition_line(partition) for partition in cluster.partitions]
    return header(cluster) + "\n".join(lines) + "\n"


def node_line(host: Host) -> str:
    """Return the line of a node."""
    found = host.facts["cpus"]
    words: dict[str, Any] = {
        "NodeName": host.name,
        "NodeHostname": host.facts["hostname"],
        "NodeAddr": host.address,
        "CPUs": cpus(host),
    }
    if not host.cpus and found["sockets"] * found["cores"] * found["threads"] == found["cpus"]:
        words["Sockets"], words["CoresPerSocket"] = found["sockets"], found["cores"]
        words["ThreadsPerCore"] = found["threads"]
    words["RealMemory"] = memory(host)
    words.update({"Gres": host.gres} if host.gres else {})
    words.update({str(name): value for name, value in host.options.items()})
    return " ".join(f"{name}={value}" for name, value in words.items())


def partition_line(partition: Partition) -> str:
    """Return the line of a partition."""
    words: dict[str, Any] = {
        "PartitionName": partition.name,
        "Nodes": ",".join(partition.nodes),
        "Default": "YES" if partition.default else "NO",
        "MaxTime": partition.max_time,
    }
    words.update({"State": "UP", **{str(name): value for name, value in partition.options.items()}})
    return " ".join(f"{name}={value}" for name, value in words.items())


def gres_conf(cluster: Cluster) -> str:
    """Return the text of gres.conf, which slurmctld hands to all nodes."""
    lines = ["AutoDetect=off"]
    for name in cluster.nodes:
        host = cluster.hosts[name]
        if not host.devices:
            continue
        kind = f" Type={host.gpu_type}" if host.gpu_type else ""
        flags = "amd_gpu_env" if "/dev/dri/" in host.devices[0] else "nvidia_gpu_env"
        lines.append(f"NodeName={name} Name=gpu{kind} File={device_list(host.devices)} Flags={flags}")
    return header(cluster) + "\n".join(lines) + "\n"


def cgroup_conf(cluster: Cluster) -> str:
    """Return the text of cgroup.conf, which all nodes share, whatever their version of control groups."""
    hold = "yes" if cluster.cgroups else "no"
    plugin = cgroup_plugin(cluster.hosts[name].facts for name in cluster.nodes) if cluster.cgroups else ""
    settings = {
        **({"CgroupPlugin": plugin} if plugin else {}),
        **dict.fromkeys(("ConstrainCores", "ConstrainDevices", "ConstrainRAMSpace"), hold),
    }
    return header(cluster) + "".join(f"{name}={value}\n" for name, value in settings.items())


def slurmdbd_conf(cluster: Cluster) -> str:
    """Return the text of slurmdbd.conf; the database authenticates slurmdbd by its Unix user."""
    controller = cluster.hosts[cluster.controller]
    settings = {
        "AuthType": "auth/munge",
        **(TOKENS if cluster.rest else {}),
        "DbdHost": controller.facts["hostname"],
        "DbdAddr": controller.address,
        "DbdPort": PORTS["slurmdbd"],
        "SlurmUser": "slurm",
        "LogFile": "/var/log/slurm/slurmdbd.log",
        "PidFile": "/run/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "slurm",
        "StorageLoc": database(cluster.name),
    }
    return header(cluster) + "".join(f"{name}={value}\n" for name, value in settings.items())


def slurmrestd_unit(cluster: Cluster) -> str:
    """Return a drop-in for the package's unit of slurmrestd: an unprivileged user, and tokens only.

    SLURM_JWT=daemon is no token (slurmrestd(8)): slurmrestd uses its clients' tokens and has none itself.
    """
    return header(cluster) + (
        "[Service]\n"
        "DynamicUser=yes\n"
        "Environment=SLURM_JWT=daemon\n"
        "ExecStart=\n"
        f"ExecStart=/usr/sbin/slurmrestd -a rest_auth/jwt {cluster.rest}\n"
        "Restart=on-failure\n"
        "RestartSec=5\n"
    )


def database(cluster: str) -> str:
    """Return the name of a cluster's accounting database."""
    return DATABASE_PREFIX + re.sub(r"[^a-z0-9]", "_", cluster)


def cpus(host: Host) -> int:
    """Return the number of CPUs that a node has for jobs."""
    return host.cpus or int(host.facts["cpus"]["cpus"])


def memory(host: Host) -> int:
    """Return the memory that a node has for jobs, in MiB."""
    if host.memory:
        return host.memory
    return max(1, int(host.facts["memory"] * MEMORY_SHARE) // MEMORY_STEP_MIB * MEMORY_STEP_MIB)


def device_list(devices: Sequence[str]) -> str:
    """Return device files in gres.conf's syntax, `/dev/nvidia[0-3]` for four in a row."""
    numbered = [re.fullmatch(r"(.*?)(\d+)", device) for device in devices]
    stems = {match[1] for match in numbered if match}
    numbers = [int(match[2]) for match in numbered if match]
    row = list(range(numbers[0], numbers[0] + len(numbers))) if numbers else []
    if len(devices) > 1 and len(stems) == 1 and numbers == row:
        return f"{stems.pop()}[{numbers[0]}-{numbers[-1]}]"
    return ",".join(devices)


def digests(cluster: Cluster) -> dict[str, str]:
    """Return digests of the configuration: a changed one needs a restart or a reload of the daemons."""
    text = slurm_conf(cluster)
    kept = [line for line in text.splitlines() if line.partition("=")[0].lower() not in _RELOADED]
    fixed = "\n".join([*kept, gres_conf(cluster), cgroup_conf(cluster)])
    return {"restart": digest(fixed), "reload": digest(text)}


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hints(cluster: Cluster) -> list[str]:
    """Return what a firewall must allow, one sentence each."""
    rest = f"from where jobs are submitted to {cluster.controller}: TCP {cluster.rest} (slurmrestd)"
    return [
        f"from all hosts to {cluster.controller}: TCP {PORTS['slurmctld']} (slurmctld)",
        f"between all hosts: TCP {PORTS['slurmd']} (slurmd) and {SRUN_PORTS} (srun)",
        f"on {cluster.controller} itself: TCP {PORTS['slurmdbd']} (slurmdbd)",
        *([rest] if cluster.rest and not _is_loopback(cluster.rest) else ()),
    ]


def _is_loopback(listens: str) -> bool:
    """Return whether HOST:PORT is a loopback address."""
    host = listens.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
