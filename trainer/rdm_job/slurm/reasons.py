# SPDX-License-Identifier: GPL-3.0-or-later
"""Explains why a job waits. Slurm's codes are those of ``squeue``'s manual (JOB REASON CODES)."""

from __future__ import annotations

import re

# The only reason that Slurm writes as a sentence.
_DRAINED = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
NEVER = "it will never start like this"

# Slurm's code → its meaning.
REASONS: dict[str, str] = {
    "AccountingPolicy": "a limit of the accounting does not allow it now",
    "AccountNotAllowed": f"its account may not use this partition: {NEVER}",
    "AssociationJobLimit": "its account runs as many jobs as it may",
    "AssociationResourceLimit": "its account uses as much as it may",
    "AssociationTimeLimit": "its account has used up its time",
    "BadConstraints": f"no node has what it requests: {NEVER}",
    "BeginTime": "its begin time has not come; after a requeue Slurm waits a while",
    "Cleaning": "what its last run has left on the nodes is still being cleared",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": f"the job that it waits for did not end as its dependency requires: {NEVER}",
    "DevicesBusy": "the devices are in use",
    "FrontEndDown": "no front end is there to run it",
    "InactiveLimit": "it reached the limit for inactivity",
    "InvalidAccount": f"its account is not valid: {NEVER}",
    "InvalidQOS": f"its QOS is not valid: {NEVER}",
    "JobArrayTaskLimit": "as many tasks of its array run as may",
    "JobHeldAdmin": "an administrator holds it (scontrol release, by him)",
    "JobHeldUser": "it is held (scontrol release)",
    "JobHoldMaxRequeue": "it was requeued more often than Slurm's MaxBatchRequeue allows, and is held",
    "JobLaunchFailure": "it could not be launched on its nodes",
    "Licenses": "it waits for a licence",
    "MaxBatchRequeue": "it was requeued more often than Slurm's MaxBatchRequeue allows, and is held",
    "NodeDown": "a node that it requests is down",
    "NonZeroExitCode": "it ended with an exit code that is not 0",
    "PartitionConfig": f"it requests more than the partition allows: {NEVER}",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs at the moment",
    "PartitionNodeLimit": f"it requests more nodes than the partition has, or lets one job have: {NEVER}",
    "PartitionTimeLimit": f"it requests more time than the partition allows: {NEVER}",
    "Priority": "jobs of higher priority are before it",
    "Prolog": "the nodes are being prepared for it",
    "QOSJobLimit": "as many jobs of its QOS run as may",
    "QOSNotAllowed": f"its QOS may not be used there: {NEVER}",
    "QOSResourceLimit": "its QOS uses as much as it may",
    "QOSTimeLimit": "its QOS has used up its time",
    "QOSUsageThreshold": "its QOS has used up its share",
    "ReqNodeNotAvail": "a node that it requests is down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": f"its reservation is gone: {NEVER}",
    "Resources": "the nodes that it needs are in use",
    "SchedDefer": "Slurm considers it in its next round",
    "SystemFailure": "Slurm, the network or a file system failed",
    "TimeLimit": "it reached its time limit",
    "WaitingForScheduling": "Slurm has not considered it yet",
    "NodeFail": "a node failed",
    _DRAINED: "nodes that it needs are down, drained, or reserved for partitions of higher priority",
}

_SPLIT = re.compile(r"(?<=[a-z])(?=[A-Z])|_")

# The parts of Slurm's names for limits: of an association or a QOS, minimum or maximum, resource, and scope.
_LIMIT = re.compile(
    r"(?P<whose>Assoc|QOS)?(?P<kind>Grp|Max|Min)"
    r"(?P<what>BB|Billing|CPU|Cpu|Energy|GRES|Jobs|License|Memory|Mem|Node|SubmitJobs?|Unknown|WallDuration|Wall)"
    r"(?P<minutes>(?:Run)?Minutes)?(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
_WHAT = {
    "BB": "burst buffers",
    "Billing": "billed resources",
    "CPU": "CPUs",
    "Cpu": "CPUs",
    "Energy": "energy",
    "GRES": "generic resources, such as GPUs,",
    "License": "licences",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Unknown": "resources",
    "WallDuration": "time",
}


def why(reason: str) -> str:
    """Return why a job waits, followed by Slurm's own text; empty if Slurm gives no reason.

    Args:
        reason: Slurm's code, possibly with details, such as ``ReqNodeNotAvail, UnavailableNodes:n[1-2]``.
    """
    text = reason.strip().strip("()")
    if text in ("", "None"):
        return ""
    word = text.partition(",")[0].strip()
    known = REASONS.get(text.replace(" ", "_")) or REASONS.get(word) or _of_limit(word)
    # An unknown code of a later release is split into words.
    return f"{known or ' '.join(_SPLIT.sub(' ', text).lower().split())} ({text})"


def never(reason: str) -> bool:
    """Whether a job with this reason waits for ever."""
    word = reason.strip("()").partition(",")[0].strip()
    return NEVER in (REASONS.get(word) or _of_limit(word))


def is_limit(text: str) -> bool:
    """Whether a text is just Slurm's code for a limit of an account or a QOS."""
    return _of_limit(text.strip()) != ""


def _of_limit(word: str) -> str:
    """Return the meaning of a limit of an account or a QOS; empty for other reasons."""
    found = _LIMIT.fullmatch(word)
    if found is None:
        return ""
    whose = "account" if found["whose"] == "Assoc" else "QOS"
    is_all = found["kind"] == "Grp"
    who = f"its {whose}" if is_all else "its account" if found["per"] == "Account" else "its user"
    may = "it may" if is_all else f"the {whose} allows"
    if found["what"] == "Jobs":
        return f"{who} runs as many jobs as {may}"
    if found["what"].startswith("Submit"):
        return f"{who} has as many jobs in the queue as {may}"
    if found["what"] == "Wall":
        return f"{who} has used up its time"
    much = ("minutes of " if found["minutes"] else "") + _WHAT[found["what"]]
    if found["kind"] == "Min":
        return f"a job of its {whose} must request more {much.rstrip(',')}: {NEVER}"
    if found["per"] in ("Job", "Node"):
        of = " of a node" if found["per"] == "Node" else ""
        return f"it requests more {much}{of} than a job of its {whose} may have: {NEVER}"
    return f"{who} uses all the {much} that {may}"
