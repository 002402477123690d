# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a job waits, in words. Slurm's own words are those of ``squeue``'s manual (JOB REASON CODES)."""

from __future__ import annotations

import re

__all__ = ["NEVER", "REASONS", "never", "why"]

# The one reason that Slurm writes as a sentence.
_DRAINED = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
NEVER = "it will never start like this"

# Slurm's word → what it means.
REASONS: dict[str, str] = {
    "AccountingPolicy": "a limit of the accounting does not allow it now",
    "AccountNotAllowed": f"its account may not use this partition: {NEVER}",
    "AssocGrpCpuLimit": "its account uses all the CPUs that it may",
    "AssocGrpGRES": "its account uses all the generic resources, such as GPUs, that it may",
    "AssocGrpJobsLimit": "its account runs as many jobs as it may",
    "AssocGrpNodeLimit": "its account uses all the nodes that it may",
    "AssocGrpSubmitJobsLimit": "its account has submitted as many jobs as it may",
    "AssocGrpWallLimit": "its account has used up its time",
    "AssocMaxJobsLimit": "its user runs as many jobs as the account allows",
    "AssocMaxNodePerJobLimit": f"it asks for more nodes than a job of its account may have: {NEVER}",
    "AssocMaxWallDurationPerJobLimit": f"it asks for more time than a job of its account may have: {NEVER}",
    "AssociationJobLimit": "its account runs as many jobs as it may",
    "AssociationResourceLimit": "its account uses as much as it may",
    "AssociationTimeLimit": "its account has used up its time",
    "BadConstraints": f"no node has what it asks for: {NEVER}",
    "BeginTime": "it was told to start later; after a requeue Slurm waits a while",
    "Cleaning": "what its last run has left on the nodes is still being cleared",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": f"the job that it waits for has ended otherwise than was asked: {NEVER}",
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
    "NodeDown": "a node that it asks for is down",
    "NonZeroExitCode": "it ended with an exit code that is not 0",
    "PartitionConfig": f"it asks for more than the partition allows: {NEVER}",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs at the moment",
    "PartitionNodeLimit": f"it asks for more nodes than the partition has, or lets one job have: {NEVER}",
    "PartitionTimeLimit": f"it asks for more time than the partition allows: {NEVER}",
    "Priority": "jobs of higher priority are before it",
    "Prolog": "the nodes are being prepared for it",
    "QOSGrpCpuLimit": "all jobs of its QOS use as many CPUs as they may",
    "QOSGrpGRES": "all jobs of its QOS use as many generic resources, such as GPUs, as they may",
    "QOSGrpJobsLimit": "as many jobs of its QOS run as may",
    "QOSGrpNodeLimit": "all jobs of its QOS use as many nodes as they may",
    "QOSJobLimit": "as many jobs of its QOS run as may",
    "QOSMaxCpuPerUserLimit": "its user has as many CPUs as the QOS allows",
    "QOSMaxGRESPerUser": "its user has as many generic resources, such as GPUs, as the QOS allows",
    "QOSMaxJobsPerUserLimit": "its user runs as many jobs as the QOS allows",
    "QOSMaxNodePerJobLimit": f"it asks for more nodes than a job of its QOS may have: {NEVER}",
    "QOSMaxNodePerUserLimit": "its user has as many nodes as the QOS allows",
    "QOSMaxWallDurationPerJobLimit": f"it asks for more time than a job of its QOS may have: {NEVER}",
    "QOSNotAllowed": f"its QOS may not be used there: {NEVER}",
    "QOSResourceLimit": "its QOS uses as much as it may",
    "QOSTimeLimit": "its QOS has used up its time",
    "QOSUsageThreshold": "its QOS has used up its share",
    "ReqNodeNotAvail": "a node that it asks for is down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": f"its reservation is gone: {NEVER}",
    "Resources": "the nodes that it needs are in use",
    "SchedDefer": "Slurm looks at it with the next round",
    "SystemFailure": "Slurm, the network or a file system failed",
    "TimeLimit": "it reached its time limit",
    "WaitingForScheduling": "Slurm has not looked at it yet",
    "NodeFail": "a node failed",
    _DRAINED: "nodes that it needs are down, drained, or reserved for partitions of higher priority",
}

_SPLIT = re.compile(r"(?<=[a-z])(?=[A-Z])|_")


def why(reason: str) -> str:
    """Return why a job waits, with Slurm's own word behind; nothing when Slurm gives none.

    Args:
        reason: Slurm's word, also with more behind it, as ``ReqNodeNotAvail, UnavailableNodes:n[1-2]``.
    """
    text = reason.strip().strip("()")
    if text in ("", "None"):
        return ""
    known = REASONS.get(text.replace(" ", "_")) or REASONS.get(text.partition(",")[0].strip())
    # An unknown one of a later release still reads as words.
    return f"{known or ' '.join(_SPLIT.sub(' ', text).lower().split())} ({text})"


def never(reason: str) -> bool:
    """Whether a job with this reason waits for ever."""
    return NEVER in REASONS.get(reason.strip("()").partition(",")[0].strip(), "")
