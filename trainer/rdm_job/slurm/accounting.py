# SPDX-License-Identifier: GPL-3.0-or-later
"""What Slurm's accounting says of a user: his associations and qualities of service, as sacctmgr prints them.

What that means for a job is in :mod:`rdm_job.slurm.policy`. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdm_core.config.slurm import limit_seconds

__all__ = [
    "ASSOCIATION_FORMAT",
    "QOS_FORMAT",
    "Accounting",
    "Association",
    "Limits",
    "Qos",
    "associations",
    "enforced",
    "qualities",
]

_COUNTED = {"grpjobs": "GrpJobs", "grpsubmit": "GrpSubmitJobs"}
_COUNTED_OF_ASSOCIATION = {**_COUNTED, "maxjobs": "MaxJobs", "maxsubmit": "MaxSubmitJobs"}
_COUNTED_OF_QOS = {
    **_COUNTED,
    "maxjobspu": "MaxJobsPerUser",
    "maxjobspa": "MaxJobsPerAccount",
    "maxsubmitpu": "MaxSubmitJobsPerUser",
    "maxsubmitpa": "MaxSubmitJobsPerAccount",
}
"""sacctmgr's words, and Slurm's names of these limits."""
_BOTH = "maxwall,grpwall,maxtres,maxtrespernode,maxtresmins,grptres,grptresmins,grptresrunmins"
ASSOCIATION_FORMAT = (
    f"account,user,partition,parentname,qos,defaultqos,{_BOTH},{','.join(_COUNTED_OF_ASSOCIATION)}"
)
"""What ``sacctmgr show associations`` is asked for. What a user's has from above is in it, but for groups."""
QOS_FORMAT = f"name,flags,usagefactor,maxtrespu,maxtrespa,mintres,{_BOTH},{','.join(_COUNTED_OF_QOS)}"
"""What ``sacctmgr show qos`` is asked for."""
_UNITS = ("", "K", "M", "G", "T", "P")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What jobs may have, of resources as in ``{"node": 4, "gres/gpu": 8}`` with memory in MiB.

    Attributes:
        most_seconds: How long a job may take; None for ever.
        group_seconds: How long all jobs together may.
        most: What a job may have.
        of_node: What of a node it may have.
        minutes: What a job may have of each resource times its minutes.
        group: What all jobs together may have.
        group_minutes: What all jobs together, also those of the past, may have times their minutes.
        running_minutes: What all that run together may have times the minutes that they may yet take.
        counts: How many jobs there may be, by Slurm's name of the limit.
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
    """What a user may have of an account, or an account of the one above it.

    Attributes:
        account: Its name.
        user: Whose; empty for the account's own.
        partition: For jobs there alone; empty for all.
        parent: The account above, of an account's own.
        qos: The QOS that jobs may have.
        default_qos: What they have when they name none; empty for none.
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
        is_first: Whether it goes before that of the partition.
        safe_factor: How much of its minutes a job is held to have, where Slurm starts those only that can run
            to their end (``UsageFactorSafe``).
        of_user: What the jobs of a user may have.
        of_account: What those of an account may have.
        least: What a job must have.
    """

    name: str
    is_first: bool = False
    safe_factor: float = 1.0
    of_user: Mapping[str, int] = field(default_factory=dict)
    of_account: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Accounting:
    """What the accounting says of a user.

    Attributes:
        user: His name, or number where he has none.
        cluster: Slurm's name for the cluster.
        enforced: What Slurm holds jobs to, of ``AccountingStorageEnforce``; empty also where it is not known.
        associations: His, and those of accounts; None where they are not known.
        default_account: Of jobs that name none; empty where it is not known.
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
        """The user's own."""
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
            # Each is looked at once, whatever they say of each other.
            account = own.pop(account).parent


def enforced(value: str) -> frozenset[str]:
    """Return what Slurm holds jobs to, with what that includes, by ``AccountingStorageEnforce``'s value."""
    words = {word.strip().lower() for word in value.split(",")} - {"", "none", "(null)", "n/a"}
    if "all" in words:
        words |= {"associations", "limits", "qos"}
    if "safe" in words:
        words.add("limits")
    if words & {"limits", "qos", "safe", "wckeys"}:
        words.add("associations")
    return frozenset(words)


def associations(text: str) -> list[Association]:
    """Return what ``sacctmgr --noheader --parsable2 show associations`` printed in ``ASSOCIATION_FORMAT``."""
    return [
        Association(
            # Slurm compares the names of accounts without case, and keeps them in lower case.
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
    """Return what ``sacctmgr --noheader --parsable2 show qos`` printed in ``QOS_FORMAT``, by name."""
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
        words: A row, by sacctmgr's words.
        counted: Those of them that are numbers of jobs, and Slurm's names of these.
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
    """Return what a list in Slurm's form holds: ``{"node": 4, "mem": 65536}`` of ``node=4,mem=64G``."""
    found = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        of = "M" if name == "mem" else ""
        if match := _AMOUNT.fullmatch(value):
            number, unit = match[1], match[2] or of
            # Slurm writes halves, too: 1.50T.
            found[name] = int(float(number) * 1024.0 ** (_UNITS.index(unit) - _UNITS.index(of)))
    return found


def _seconds(text: str) -> int | None:
    return limit_seconds(text) if text[:1].isdigit() else None
