# SPDX-License-Identifier: GPL-3.0-or-later
"""What Slurm's accounting lets a user's jobs have. Pure functions.

Slurm takes a job that asks for more than its account or its QOS may ever have, and lets it wait for ever. So
limits are compared before anything is submitted, where Slurm enforces them (``AccountingStorageEnforce``).
Which of several limits holds is as in Slurm's "Resource Limits": the partition's QOS, the job's, the user's
association.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rdm_job.slurm.limits import Partition, its_partition, mebibytes, near, span
from rdm_trainer.config import Config
from rdm_trainer.config.slurm import Component, components, limit_seconds

__all__ = [
    "ASSOCIATION_FORMAT",
    "QOS_FORMAT",
    "Accounting",
    "Association",
    "Qos",
    "associations",
    "enforced",
    "problems",
    "qualities",
]

ASSOCIATION_FORMAT = (
    "account,user,partition,parentname,qos,defaultqos,maxwall,maxtres,maxtrespernode,grptres,maxjobs"
)
"""What ``sacctmgr show associations`` is asked for. What a user's has from above is in it, but for groups."""
QOS_FORMAT = "name,flags,maxwall,maxtres,maxtrespernode,maxtrespu,maxtrespa,grptres,mintres"
"""What ``sacctmgr show qos`` is asked for."""
_UNITS = ("", "K", "M", "G", "T", "P")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_NORMAL = "normal"
"""The QOS of a job whose association has several and no default one."""


@dataclass(frozen=True)
class Association:
    """What a user may have of an account, or an account of the one above it.

    Attributes:
        account: Its name.
        user: Whose; empty for the account's own.
        partition: For jobs there alone; empty for all.
        parent: The account above, of an account's own.
        qos: The QOS that jobs may have.
        default_qos: What they have when they name none; empty for none.
        most_seconds: How long a job may take; None for ever.
        most: What a job may have, as ``{"node": 4, "gres/gpu": 8}``; memory in MiB.
        of_node: What of a node it may have.
        group: What all jobs together may have.
        most_jobs: How many may run; None for all.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    most_seconds: int | None = None
    most: Mapping[str, int] = field(default_factory=dict)
    of_node: Mapping[str, int] = field(default_factory=dict)
    group: Mapping[str, int] = field(default_factory=dict)
    most_jobs: int | None = None


@dataclass(frozen=True)
class Qos:
    """A quality of service.

    Attributes:
        name: Its name.
        is_first: Whether it goes before that of the partition.
        most_seconds: How long a job may take; None for ever.
        most: What a job may have, as of an association.
        of_node: What of a node it may have.
        of_user: What the jobs of a user may have.
        of_account: What those of an account may have.
        group: What all jobs together may have.
        least: What a job must have.
    """

    name: str
    is_first: bool = False
    most_seconds: int | None = None
    most: Mapping[str, int] = field(default_factory=dict)
    of_node: Mapping[str, int] = field(default_factory=dict)
    of_user: Mapping[str, int] = field(default_factory=dict)
    of_account: Mapping[str, int] = field(default_factory=dict)
    group: Mapping[str, int] = field(default_factory=dict)
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
            most_seconds=_seconds(words["maxwall"]),
            most=_resources(words["maxtres"]),
            of_node=_resources(words["maxtrespernode"]),
            group=_resources(words["grptres"]),
            most_jobs=int(words["maxjobs"]) if words["maxjobs"].isdigit() else None,
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
            most_seconds=_seconds(words["maxwall"]),
            most=_resources(words["maxtres"]),
            of_node=_resources(words["maxtrespernode"]),
            of_user=_resources(words["maxtrespu"]),
            of_account=_resources(words["maxtrespa"]),
            group=_resources(words["grptres"]),
            least=_resources(words["mintres"]),
        )
        for words in _rows(text, QOS_FORMAT)
    )
    return {one.name: one for one in found}


def problems(config: Config, known: Accounting, there: Sequence[Partition]) -> list[str]:
    """Return what of a job the accounting would never let run, one sentence each.

    Args:
        config: The job's, without a problem in itself.
        known: What the accounting says of its user.
        there: The partitions.
    """
    slurm = config.launcher.slurm
    if slurm.qos and known.qos and slurm.qos not in known.qos:
        return [f"Slurm has no QOS {slurm.qos}; {_near(slurm.qos, known.qos)}"]
    if known.associations is None:
        return []
    mine = known.accounts
    if not mine:
        if "associations" not in known.enforced:
            return []
        return [
            f"Slurm takes jobs only of users who have an account, and {known.user} has none on the cluster "
            f"{known.cluster}; whoever runs it adds one with: sacctmgr add user {known.user} account=ACCOUNT."
        ]
    if slurm.account and slurm.account.lower() not in mine:
        return [f"launcher.slurm.account {slurm.account} is none of yours; {_near(slurm.account, mine)}"]
    found: dict[str, None] = {}
    held: list[tuple[dict[str, int], list[_Limit]]] = []
    for part in components(config):
        if (partition := its_partition(part, there)) is None:
            continue
        under = _association(known, (slurm.account or known.default_account).lower(), partition)
        if isinstance(under, str):
            found[under] = None
        elif under is not None:
            qos = slurm.qos or under.default_qos or (under.qos[0] if len(under.qos) == 1 else _NORMAL)
            if refused := _of_qos(slurm.qos, qos, known, under, partition):
                found[refused] = None
            elif "limits" in known.enforced:
                chosen = _chosen(known, partition.qos, qos)
                found |= dict.fromkeys(_of_time(slurm.time, under, chosen))
                found |= dict.fromkeys(_too_little(part, chosen))
                held.append((_wanted(part), _limits(part, known, under, chosen)))
    return [*found, *dict.fromkeys(_too_much(held))]


@dataclass(frozen=True)
class _Limit:
    """What may be had of a resource.

    Attributes:
        name: Slurm's name for such limits.
        whose: Who may have it: of two associations never the same, since limits that are equal are one.
        resource: Slurm's name of the resource.
        most: How much.
        wanted: What a component asks for of a node; None where the limit is not one of nodes.
        is_shared: Whether all components of a job have it together.
    """

    name: str
    whose: str
    resource: str
    most: int
    wanted: int | None = None
    is_shared: bool = False


def _association(known: Accounting, account: str, partition: Partition) -> Association | str | None:
    """Return what a job runs under in a partition; why it may not; None where that is not known."""
    own = [one for one in known.mine if one.account == account]
    # One for the partition goes before one for all.
    for wanted in (partition.name, ""):
        if mine := next((one for one in own if one.partition == wanted), None):
            return mine
    if not own or "associations" not in known.enforced:
        return None
    return (
        f"You may use account {account} only in {_and(one.partition for one in own)}, and not in "
        f"partition {partition.name}."
    )


def _of_qos(asked: str | None, qos: str, known: Accounting, mine: Association, partition: Partition) -> str:
    """Return why a job may not have its quality of service; empty where it may.

    Args:
        asked: What the job names; empty or None for none.
        qos: What it has.
        known: What the accounting says.
        mine: The association that it would run under.
        partition: Where.
    """
    if asked and "qos" in known.enforced and asked not in mine.qos:
        return f"Account {mine.account} may not use the QOS {asked}; {_near(asked, mine.qos)}"
    is_allowed = partition.qos_allowed is None or qos in partition.qos_allowed
    if is_allowed and qos not in partition.qos_denied:
        return ""
    allowed = partition.qos_allowed or [one for one in mine.qos if one not in partition.qos_denied]
    return f"Partition {partition.name} takes no jobs of the QOS {qos}; {_near(qos, allowed)}"


def _chosen(known: Accounting, *names: str) -> list[Qos]:
    """Return the QOS whose limits hold, that which goes before the other first."""
    chosen = [known.qos[name] for name in dict.fromkeys(names) if name in known.qos]
    if len(chosen) > 1 and chosen[1].is_first:
        chosen.reverse()
    return chosen


def _of_time(time: str | None, mine: Association, chosen: Sequence[Qos]) -> Iterator[str]:
    """Yield why a job may never run, or not so long."""
    if mine.most_jobs == 0:
        yield f"Account {mine.account} lets you run no jobs (MaxJobs): Slurm would let it wait for ever."
    limits = [(f"a job of the QOS {one.name}", one.most_seconds) for one in chosen]
    limits.append((f"your jobs of account {mine.account}", mine.most_seconds))
    whose, seconds = next(((whose, most) for whose, most in limits if most is not None), ("", None))
    if time and seconds is not None and limit_seconds(time) > seconds:
        yield (
            f"launcher.slurm.time {time} is more than the {span(seconds)} of {whose} (MaxWall): ask for no "
            "more, or Slurm lets it wait for ever."
        )


def _too_little(part: Component, chosen: Sequence[Qos]) -> Iterator[str]:
    """Yield what a component asks for too little of."""
    wanted = _wanted(part)
    for name in _EXACT:
        whose, least = next(((one.name, one.least[name]) for one in chosen if name in one.least), ("", 0))
        if wanted[name] < least:
            yield (
                f"The job asks for {wanted[name]} {_word(name)}, and a job of the QOS {whose} must ask for "
                f"{least} (MinTRES): Slurm would let it wait for ever."
            )


def _too_much(held: Sequence[tuple[Mapping[str, int], Sequence[_Limit]]]) -> Iterator[str]:
    """Yield what a job asks for that it may never have; of each resource the least of what it may.

    Args:
        held: What each component asks for, and what holds it.
    """
    for wanted, limits in held:
        for name, count in wanted.items():
            asked = {
                limit: sum(other.get(name, 0) for other, its in held if limit in its)
                if limit.is_shared
                else limit.wanted
                if limit.wanted is not None
                else count
                for limit in limits
                if limit.resource == name
            }
            over = [limit for limit, much in asked.items() if much > limit.most]
            if over:
                limit = min(over, key=lambda one: one.most)
                of = " of a node" if limit.wanted is not None else ""
                yield (
                    f"The job asks for {asked[limit]} {_word(name)}{of}, and {limit.whose} may have "
                    f"{limit.most} ({limit.name}): ask for no more, or Slurm lets it wait for ever."
                )


def _limits(part: Component, known: Accounting, mine: Association, chosen: Sequence[Qos]) -> list[_Limit]:
    """Return what holds for a component: of each kind the first that is set, of groups those of all accounts.

    Args:
        part: It.
        known: What the accounting says.
        mine: The association that it would run under.
        chosen: The QOS, the one that goes before first.
    """
    jobs = [(f"a job of the QOS {one.name}", one.most, one.of_node) for one in chosen]
    jobs.append((f"a job of account {mine.account}", mine.most, mine.of_node))
    found = []
    for name in _wanted(part):
        each = _of_a_node(part).get(name)
        firsts = [
            ("MaxTRES", None, False, [(who, most) for who, most, _ in jobs]),
            ("MaxTRESPerNode", each, False, [(who, most) for who, _, most in jobs if each is not None]),
            (
                "MaxTRESPerUser",
                None,
                True,
                [(f"a user of the QOS {one.name}", one.of_user) for one in chosen],
            ),
            (
                "MaxTRESPerAccount",
                None,
                True,
                [(f"an account of the QOS {one.name}", one.of_account) for one in chosen],
            ),
            ("GrpTRES", None, True, [(f"all jobs of the QOS {one.name}", one.group) for one in chosen]),
        ]
        for limit, wanted, is_shared, kind in firsts:
            found += [
                _Limit(limit, who, name, most[name], wanted, is_shared) for who, most in kind if name in most
            ][:1]
        if not any(name in one.group for one in chosen):
            found += [
                _Limit("GrpTRES", _all_jobs_of(one), name, one.group[name], is_shared=True)
                for one in (mine, *known.above(mine.account))
                if name in one.group
            ]
    return found


def _all_jobs_of(one: Association) -> str:
    """Return who has the limit of all jobs of an association: a user has one for each of some partitions."""
    where = f" in partition {one.partition}" if one.partition else ""
    return f"all {'your ' if one.user else ''}jobs of account {one.account}{where}"


_EXACT = ("node", "gres/gpu")
"""What a job gets as much of as it asks for, and no more."""


def _wanted(part: Component) -> dict[str, int]:
    """Return what a component asks for at least, by Slurm's names."""
    wanted = {"node": part.nodes, "cpu": part.nodes * int(part.cpus or 1)}
    if memory := mebibytes(part.mem):
        wanted["mem"] = part.nodes * memory
    for name, count in part.generic.items():
        # Of one with a type, all types together are counted, too.
        for known_as in dict.fromkeys((name, name.partition(":")[0])):
            wanted[f"gres/{known_as}"] = wanted.get(f"gres/{known_as}", 0) + part.nodes * count
    # There may be a least number.
    wanted.setdefault("gres/gpu", 0)
    return wanted


def _of_a_node(part: Component) -> dict[str, int]:
    """Return what a component asks for at least of each node."""
    wanted = _wanted(replace(part, nodes=1))
    del wanted["node"]
    return wanted


def _word(name: str) -> str:
    plain = {"node": "nodes", "cpu": "CPUs", "mem": "MiB of memory", "gres/gpu": "GPUs"}
    return plain.get(name, name.removeprefix("gres/"))


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


def _near(value: str, known: Iterable[str]) -> str:
    names = sorted(known)
    there = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}." if names else "there is none."
    return near(value, names) or there


def _and(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))
