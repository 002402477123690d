# SPDX-License-Identifier: GPL-3.0-or-later
"""What a change of slurm.conf would do to jobs in the queue. Pure decisions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

HARDWARE = ("CPUs", "Sockets", "CoresPerSocket", "ThreadsPerCore", "RealMemory", "Gres")
"""The resources in a node's line of slurm.conf."""
HINT = "repair slurmctld (/var/log/slurm/slurmctld.log says why), or wait until no slurmstepd runs"
LOSES_JOBS = ("SelectType", "ProctrackType", "TaskPlugin")
"""Settings whose change ends all jobs (slurm.conf(5))."""


def unseen(hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts that run job steps while the queue cannot be read.

    Args:
        hosts: what rdm.provision.slurm_facts found, by host.
    """
    ours = {name: facts for name, facts in hosts.items() if facts["owner"]}
    if all(facts["jobs"] is not None for facts in ours.values()):
        return []
    return [name for name, facts in ours.items() if "slurmstepd" in facts["running"]]


def endangered(
    old: str, new: str, jobs: Sequence[Mapping[str, str]], hidden: Sequence[str] = ()
) -> list[Problem]:
    """Return the changes that would end a job.

    Args:
        old: the text of the current slurm.conf; empty for none.
        new: the text of the new one.
        jobs: the queue: `id`, `state`, `partition` and `nodes`, the last as Slurm's hostlists.
        hidden: what unseen() returned.
    """
    before, after = _lines(old), _lines(new)
    problems = []
    for name, words in before["NodeName"].items():
        now = after["NodeName"].get(name)
        changed = [key for key in HARDWARE if now is None or words.get(key) != now.get(key)]
        running = [job["id"] for job in jobs if name in expanded(job["nodes"])]
        if changed and (running or hidden):
            what = "would leave the cluster" if now is None else f"would have another {names(changed)}"
            problems.append(_waiting(name, what, running, hidden))
    for name in before["PartitionName"]:
        queued = [job["id"] for job in jobs if name in job["partition"].split(",")]
        if name not in after["PartitionName"] and (queued or hidden):
            problems.append(_waiting(None, f"the partition {name} would be removed", queued, hidden))
    for key in LOSES_JOBS if old else ():
        was, shall = _setting(old, key), _setting(new, key)
        if was != shall and (jobs or hidden):
            what = f"{key} would be {shall or 'unset'} instead of {was or 'unset'}, which ends all jobs,"
            problems.append(_waiting(None, what, [job["id"] for job in jobs], hidden))
    return problems


def check_controller(cluster: str, controller: str, hosts: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Refuse to move the controller: the new one would not know the jobs, and slurmd would end them.

    Args:
        cluster: the cluster's name.
        controller: the new controller.
        hosts: what rdm.provision.slurm_facts found, by host.
    """
    reason = f"is the controller of {cluster}, whose jobs would end if {controller} took its place"
    hint = "take the cluster away with slurm down first, or put this host into the group slurm_controller"
    hidden = unseen(hosts)
    return [
        Problem(name, "", reason, hint)
        for name, facts in hosts.items()
        if name != controller and facts["owner"] == cluster
        if "slurmctld" in facts["running"] or (facts["jobs"] is None and hidden)
    ]


def _waiting(node: str | None, what: str, jobs: Sequence[str], hidden: Sequence[str]) -> Problem:
    if not jobs:
        reason = f"while jobs run on {names(hidden)} and the queue cannot be read"
        return Problem(node, what, reason, HINT)
    hint = f"wait for {'it' if len(jobs) == 1 else 'them'}, or cancel with scancel {' '.join(jobs[:8])}"
    several = f"jobs {names(jobs)} are" if len(jobs) > 1 else f"job {jobs[0]} is"
    return Problem(node, what, f"while {several} there", hint)


def _setting(text: str, key: str) -> str:
    match = re.search(rf"^{key}=(.*)$", text, re.MULTILINE | re.IGNORECASE)
    return match[1].strip() if match else ""


def _lines(text: str) -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = {"NodeName": {}, "PartitionName": {}}
    for line in text.splitlines():
        kind, _, rest = line.partition("=")
        if kind in found:
            name, *words = rest.split()
            found[kind][name] = dict(word.split("=", 1) for word in words if "=" in word)
    return found


def expanded(nodes: str) -> set[str]:
    """Return the names in a Slurm hostlist, such as `n[1-3,7],login`."""
    found: set[str] = set()
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes):
        found |= set(_expand(part))
    return found


def _expand(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if not match:
        return [part]
    found = []
    for piece in match[2].split(","):
        first, _, last = piece.partition("-")
        width = len(first)
        for number in range(int(first), int(last or first) + 1):
            found += [f"{match[1]}{number:0{width}d}{rest}" for rest in _expand(match[3])]
    return found
