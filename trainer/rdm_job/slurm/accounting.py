# SPDX-License-Identifier: GPL-3.0-or-later
"""Parses a user's associations and qualities of service in Slurm's accounting, as sacctmgr prints them.

:mod:`rdm_job.slurm.policy` checks a job against them. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdm_core.config.slurm import limit_seconds

_COUNTED = {"grpjobs": "GrpJobs", "grpsubmit": "GrpSubmitJobs"}
_COUNTED_OF_ASSOCIATION = {**_COUNTED, "maxjobs": "MaxJobs", "maxsubmit": "MaxSubmitJobs"}
_COUNTED_OF_QOS = {
    **_COUNTED,
    "maxjobspu": "MaxJobsPerUser",
    "maxjobspa": "MaxJobsPerAccount",
    "maxsubmitpu": "MaxSubmitJobsPerUser",
    "maxsubmitpa": "MaxSubmitJobsPerAccount",
}
"""sacctmgr's field names, and Slurm's names of these limits."""
_BOTH = "maxwall,grpwall,maxtres,maxtrespernode,maxtresmins,grptres,grptresmins,grptresrunmins"
ASSOCIATION_FORMAT = (
    f"account,user,partition,parentname,qos,defaultqos,{_BOTH},{','.join(_COUNTED_OF_ASSOCIATION)}"
)
"""The fields of ``sacctmgr show associations``. A user's row has inherited limits, except those of groups."""
QOS_FORMAT = f"name,flags,usagefactor,maxtrespu,maxtrespa,mintres,{_BOTH},{','.join(_COUNTED_OF_QOS)}"
"""The fields of ``sacctmgr show qos``."""
_UNITS = ("", "K", "M", "G", "T", "P")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of jobs. Resources are in the form ``{"node": 4, "gres/gpu": 8}``, with memory in MiB.

    Attributes:
        most_seconds: The longest time limit of a job; None without a limit.
        group_seconds: The limit of the time of all jobs together.
        most: The limit of each resource for a job.
        of_node: The same for a job on one node.
        minutes: The limit of each resource times minutes for a job.
        group: The limit of each resource for all jobs together.
        group_minutes: The limit of resource times minutes for all jobs together, including past ones.
        running_minutes: The limit of resource times remaining minutes for all running jobs together.
        counts: The limits of the number of jobs, by Slurm's name of the limit.
    """

    most_seconds: int | None = None
    group_seconds: int | None = None
    most: Mapping[str, int] = field(default_factory=dict)
    of_node: Mapping[str, int] = field(default_factory=dict)
    minutes: Mapping[str, int] = field(default_factory=dict)
    group: Mapping[str, int] = field(default_factory=dict)
    group_minutes: Mapping[str, int] = field(default_factory=dict)
    running_minutes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Association(Limits):
    """The association of a user with an account, or of an account with its parent, and its limits.

    Attributes:
        account: The account's name.
        user: The user; empty for the account's own association.
        partition: The only partition that it applies to; empty for all.
        parent: The parent account, in an account's own association.
        qos: The QOS that jobs may have.
        default_qos: The QOS of jobs that name none; empty for none.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""


@dataclass(frozen=True)
class Qos(Limits):
    """A quality of service.

    Attributes:
        name: Its name.
        is_first: Whether it takes precedence over the partition's QOS (``OverPartQOS``).
        safe_factor: The usage factor of a job's minutes, if Slurm only starts jobs that can run to their end
            (``UsageFactorSafe``).
        of_user: The limit of each resource for the jobs of a user.
        of_account: The limit of each resource for the jobs of an account.
        least: How much of each resource a job must have.
    """

    name: str
    is_first: bool = False
    safe_factor: float = 1.0
    of_user: Mapping[str, int] = field(default_factory=dict)
    of_account: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Accounting:
    """A user's data in the accounting.

    Attributes:
        user: The user's name, or number without one.
        cluster: Slurm's name for the cluster.
        enforced: What Slurm enforces, from ``AccountingStorageEnforce``; empty if nothing or unknown.
        associations: Those of the user and of accounts; None if unknown.
        default_account: The account of jobs that name none; empty if unknown.
        qos: The qualities of service, by name.
    """

    user: str = ""
    cluster: str = ""
    enforced: frozenset[str] = frozenset()
    associations: Sequence[Association] | None = None
    default_account: str = ""
    qos: Mapping[str, Qos] = field(default_factory=dict)

    @property
    def mine(self) -> list[Association]:
        """The user's own associations."""
        return [one for one in self.associations or () if one.user and one.user == self.user]

    @property
    def accounts(self) -> list[str]:
        """The names of the user's accounts."""
        return sorted({one.account for one in self.mine})

    def above(self, account: str) -> Iterator[Association]:
        """Yield an account's own association and those of all above it."""
        own = {one.account: one for one in self.associations or () if not one.user}
        while account in own:
            yield own[account]
            # Each account is visited once, even if the parents form a circle.
            account = own.pop(account).parent


def enforced(value: str) -> frozenset[str]:
    """Return what a value of ``AccountingStorageEnforce`` enforces, including everything implied."""
    words = {word.strip().lower() for word in value.split(",")} - {"", "none", "(null)", "n/a"}
    if "all" in words:
        words |= {"associations", "limits", "qos"}
    if "safe" in words:
        words.add("limits")
    if words & {"limits", "qos", "safe", "wckeys"}:
        words.add("associations")
    return frozenset(words)


def associations(text: str) -> list[Association]:
    """Parse the output of ``sacctmgr --noheader --parsable2 show associations`` in ``ASSOCIATION_FORMAT``."""
    return [
        Association(
            # Slurm ignores the case of account names, and stores them in lower case.
            account=words["account"].lower(),
            user=words["user"],
            partition=words["partition"],
            parent=words["parentname"].lower(),
            qos=tuple(filter(None, words["qos"].split(","))),
            default_qos=words["defaultqos"],
            **_limits(words, _COUNTED_OF_ASSOCIATION),
        )
        for words in _rows(text, ASSOCIATION_FORMAT)
        if words["account"]
    ]


def qualities(text: str) -> dict[str, Qos]:
    """Parse the output of ``sacctmgr --noheader --parsable2 show qos`` in ``QOS_FORMAT``, by name."""
    found = (
        Qos(
            name=words["name"],
            is_first="overpartqos" in words["flags"].lower().split(","),
            safe_factor=_factor(words),
            of_user=_resources(words["maxtrespu"]),
            of_account=_resources(words["maxtrespa"]),
            least=_resources(words["mintres"]),
            **_limits(words, _COUNTED_OF_QOS),
        )
        for words in _rows(text, QOS_FORMAT)
    )
    return {one.name: one for one in found}


def _limits(words: Mapping[str, str], counted: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of :class:`Limits`.

    Args:
        words: A row, by sacctmgr's field names.
        counted: The fields that are numbers of jobs, with Slurm's names of them.
    """
    return {
        "most_seconds": _seconds(words["maxwall"]),
        "group_seconds": _seconds(words["grpwall"]),
        "most": _resources(words["maxtres"]),
        "of_node": _resources(words["maxtrespernode"]),
        "minutes": _resources(words["maxtresmins"]),
        "group": _resources(words["grptres"]),
        "group_minutes": _resources(words["grptresmins"]),
        "running_minutes": _resources(words["grptresrunmins"]),
        "counts": {name: int(words[word]) for word, name in counted.items() if words[word].isdigit()},
    }


def _factor(words: Mapping[str, str]) -> float:
    if "usagefactorsafe" not in words["flags"].lower().split(","):
        return 1.0
    return float(words["usagefactor"] or 1.0)


def _rows(text: str, form: str) -> Iterator[dict[str, str]]:
    names = form.split(",")
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) == len(names):
            yield dict(zip(names, words, strict=True))


def _resources(text: str) -> dict[str, int]:
    """Return the resources in a list of Slurm's: ``{"node": 4, "mem": 65536}`` for ``node=4,mem=64G``."""
    found = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        of = "M" if name == "mem" else ""
        if match := _AMOUNT.fullmatch(value):
            number, unit = match[1], match[2] or of
            # Slurm also writes fractions: 1.50T.
            found[name] = int(float(number) * 1024.0 ** (_UNITS.index(unit) - _UNITS.index(of)))
    return found


def _seconds(text: str) -> int | None:
    return limit_seconds(text) if text[:1].isdigit() else None
