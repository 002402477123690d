# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of a host for Slurm: hardware, packages, processes, and the cluster that owns them. Read only.

Sources: the kernel's Documentation/admin-guide/cputopology.rst and cgroup-v2.rst; proc(5).

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import socket
from typing import Any, Dict, Iterable, List, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_json, read_text
from ansible_collections.rdm.provision.plugins.module_utils.base.programs import (
    ProgramProblem,
    find_program,
    run_program,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.systemd import systemd_runs
from ansible_collections.rdm.provision.plugins.module_utils.hardware import sysfs
from ansible_collections.rdm.provision.plugins.module_utils.slurm.distributions import packages

CONFIG_DIR = "/etc/slurm"
CONFIG = CONFIG_DIR + "/slurm.conf"
# Paths in other packages of Slurm.
OTHER_CONFIGS = ("/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf", "/opt/slurm/etc/slurm.conf")
OWNER_MARKER = CONFIG_DIR + "/rdm/cluster"
MUNGE_KEY = "/etc/munge/munge.key"
APPLIED = "/var/lib/slurm/rdm-applied.json"
HEALTH_SETTINGS = CONFIG_DIR + "/rdm/health.json"
MARK = "# Written by rdm-provision"
DAEMONS = ("slurmctld", "slurmd", "slurmdbd")
MUNGED = "munged"
STEP = "slurmstepd"  # one per job step; it survives slurmd
TIMEOUT_S = 60.0
QUEUE_FORMAT = "%A|%T|%P|%N"
_VENDORS = {"nvidia": "nvidia", "amdgpu": "amd"}  # kernel driver -> vendor of its GPUs


def gather(devices: Iterable[str]) -> Dict[str, Any]:
    """Return all facts."""
    manager = package_manager()
    installed = installed_versions(manager)
    owner = read_text(OWNER_MARKER).strip()
    slurm = next((installed[name] for name in ("client", *DAEMONS) if installed.get(name)), "")
    running = processes()
    hostname = socket.gethostname().partition(".")[0]
    conf = read_text(CONFIG) if owner else ""
    return {
        "hostname": hostname,
        "systemd": systemd_runs(),
        "manager": manager,
        "packages": installed,
        "names": packages(manager),
        "version": slurm,
        "candidate": "" if slurm else candidate(manager),
        "cpus": topology(),
        "memory": memory(read_text("/proc/meminfo")),
        "gpus": sysfs.gpus(),
        "missing_devices": [device for device in devices if not os.path.exists(device)],
        "cgroup": cgroups(),
        "health": health(),
        "owner": owner,
        "foreign": "" if owner else foreign(running),
        "running": sorted(name for name in running if running[name]),
        "munge_key": key_digest(),
        "conf": conf,
        "applied": applied(),
        "jobs": jobs(owner, conf, hostname, running),
    }


def package_manager() -> str:
    """Return this host's package manager, apt or dnf; empty for another."""
    return "apt" if find_program("apt-get") else "dnf" if find_program("dnf") else ""


def topology(root: str = "/sys") -> Dict[str, int]:
    """Return `cpus`, `sockets`, `cores` per socket and `threads` per core of the online CPUs."""
    packages, cores, count = set(), set(), 0
    for directory in glob.glob(os.path.join(root, "devices/system/cpu/cpu[0-9]*")):
        package = read_text(directory + "/topology/physical_package_id").strip()
        core = read_text(directory + "/topology/core_id").strip()
        if not package:  # offline
            continue
        count += 1
        packages.add(package)
        cores.add((package, core))
    count = count or os.cpu_count() or 1
    sockets = max(1, len(packages))
    per_socket = max(1, len(cores) // sockets)
    return {
        "cpus": count,
        "sockets": sockets,
        "cores": per_socket,
        "threads": max(1, count // (sockets * per_socket)),
    }


def memory(meminfo: str) -> int:
    """Return the memory in MiB from the text of /proc/meminfo."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match.group(1)) // 1024 if match else 0


def cgroups(root: str = "/sys/fs/cgroup") -> Dict[str, Any]:
    """Return the `version` (0 for none) and `controllers` of control groups."""
    text = read_text(root + "/cgroup.controllers")
    if text or os.path.exists(root + "/cgroup.controllers"):
        return {"version": 2, "controllers": text.split()}
    found = sorted(
        {name for entry in os.listdir(root) for name in entry.split(",")} if os.path.isdir(root) else []
    )
    return {"version": 1 if "memory" in found else 0, "controllers": found}


def health(root: str = "/sys", settings: str = HEALTH_SETTINGS) -> Dict[str, List[str]]:
    """Return what a health check expects: `drivers` of GPUs, and `ports` of the fabric, such as `mlx5_0/1`.

    A driver that was loaded at set-up is expected as long as one of its GPUs exists, and a port that was
    active then as long as its card exists, also if it is down now.
    """
    kept = read_json(settings)
    gpus = sysfs.gpus(root)
    drivers = {str(gpu["driver"]) for gpu in gpus}.union(
        driver
        for driver in _texts(kept.get("drivers"))
        if _VENDORS.get(driver) in {gpu["vendor"] for gpu in gpus}
    )
    found = sysfs.infiniband(root)
    active = {
        "{0}/{1}".format(device["name"], port["port"])
        for device in found
        for port in device["ports"]
        if port["state"] == "ACTIVE" and not device["virtual"]
    }
    there = {str(device["name"]) for device in found}
    return {
        "drivers": sorted(drivers.intersection(_VENDORS)),
        "ports": sorted(
            active.union(port for port in _texts(kept.get("ports")) if port.partition("/")[0] in there)
        ),
    }


def processes(proc: str = "/proc") -> Dict[str, List[int]]:
    """Return the process ids of Slurm's daemons, of munged and of job steps, by name."""
    found = own_processes((*DAEMONS, MUNGED, STEP), proc)
    found[STEP] = [
        pid
        for pid in found[STEP]
        # The one with "infinity" belongs to no job: slurmd starts it to hold the control group.
        if "infinity" not in read_text("{0}/{1}/cmdline".format(proc, pid)).split("\0")
    ]
    return found


def own_processes(names: Iterable[str], proc: str = "/proc") -> Dict[str, List[int]]:
    """Return the ids of processes with these names, without those in containers."""
    found: Dict[str, List[int]] = {name: [] for name in names}
    for entry in os.listdir(proc):
        name = read_text("{0}/{1}/comm".format(proc, entry)).strip() if entry.isdigit() else ""
        if name in found and not _is_inside(read_text("{0}/{1}/status".format(proc, entry))):
            found[name].append(int(entry))
    return found


def _is_inside(status: str) -> bool:
    """Return whether a process is in another PID namespace, from the text of /proc/PID/status."""
    match = re.search(r"^NSpid:(.*)$", status, re.MULTILINE)
    return match is not None and len(match.group(1).split()) > 1


def foreign(running: Dict[str, List[int]]) -> str:
    """Return what of a Slurm is here, on a host that no cluster of ours owns; empty for nothing."""
    for path in (CONFIG, *OTHER_CONFIGS):
        if os.path.exists(path) and MARK not in read_text(path):
            return "{0} is there,".format(path)
    names = [name for name in DAEMONS if running.get(name)]
    return "{0} runs,".format(names[0]) if names else ""


def key_digest() -> str:
    """Return the digest of munge's key (safe to show, since the key is random); empty if there is none."""
    try:
        with open(MUNGE_KEY, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def applied() -> Dict[str, Any]:
    """Return the recorded configuration of the daemons, by name."""
    return read_json(APPLIED)


def _texts(value: Any) -> List[str]:
    """Return the strings in a list; none if it is not a list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def installed_versions(manager: str) -> Dict[str, str]:
    """Return the versions of installed packages by our names; empty for those that are not installed."""
    names = packages(manager)
    found = {}
    for ours, theirs in names.items():
        command = (
            [find_program("dpkg-query"), "-W", "-f=${db:Status-Status} ${Version}", theirs]
            if manager == "apt"
            else [find_program("rpm"), "-q", "--qf", "installed %{VERSION}", theirs]
        )
        try:
            status, _, version = run_program(command, TIMEOUT_S).partition(" ")
        except ProgramProblem:
            status, version = "", ""
        found[ours] = version.strip() if status == "installed" else ""
    return found


def candidate(manager: str) -> str:
    """Return the version of Slurm that would be installed; empty if unknown."""
    try:
        if manager == "apt":
            output = run_program([find_program("apt-cache"), "policy", packages("apt")["slurmd"]], TIMEOUT_S)
            match = re.search(r"Candidate: (\d\S+)", output)
            return match.group(1) if match else ""
        if manager == "dnf":
            argv = [find_program("dnf"), "-q", "repoquery", "--qf", "%{VERSION}", packages("dnf")["slurmd"]]
            return run_program(argv, TIMEOUT_S).strip().splitlines()[-1]
    except (ProgramProblem, IndexError):
        pass
    return ""


def jobs(
    owner: str, conf: str, hostname: str, running: Dict[str, List[int]]
) -> Optional[List[Dict[str, str]]]:
    """Return the queue, on Slurm's controller; None if it cannot be read.

    Args:
        owner: the cluster that made the Slurm that is here; empty for none.
        conf: the text of slurm.conf; empty if it is not ours.
        hostname: of this host.
        running: the processes, by name.
    """
    if owner and running.get("slurmctld"):
        return queue()
    match = re.search(r"^SlurmctldHost=([^(\s]+)", conf, re.MULTILINE)
    return None if match and match.group(1) == hostname else []


def queue() -> Optional[List[Dict[str, str]]]:
    """Return the jobs in the queue: id, state, partition, nodes; None if it cannot be read."""
    try:
        output = run_program([find_program("squeue"), "--noheader", "--format=" + QUEUE_FORMAT], TIMEOUT_S)
    except ProgramProblem:
        return None
    return [
        dict(zip(("id", "state", "partition", "nodes"), line.split("|")))
        for line in output.splitlines()
        if line
    ]
