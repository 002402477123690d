# SPDX-License-Identifier: GPL-3.0-or-later
"""What Slurm's accounting lets a user's jobs have. Pure functions.

Slurm takes a job that asks for more than its account or its QOS may ever have, and lets it wait for ever. So
limits are compared before anything is submitted, where Slurm enforces them (``AccountingStorageEnforce``).
Which of several limits holds is as in Slurm's "Resource Limits": the partition's QOS, the job's, the user's
association.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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

ASSOCIATION_FORMAT = "account,user,partition,parentname,qos,defaultqos,maxwall,maxtres,grptres,maxjobs"
"""What ``sacctmgr show associations`` is asked for. What a user's has from above is in it, but for groups."""
QOS_FORMAT = "name,flags,maxwall,maxtres,maxtrespu,maxtrespa,grptres,mintres"
"""What ``sacctmgr show qos`` is asked for."""
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
        of_user: What the jobs of a user may have.
        of_account: What those of an account may have.
        group: What all jobs together may have.
        least: What a job must have.
    """

    name: str
    is_first: bool = False
    most_seconds: int | None = None
    most: Mapping[str, int] = field(default_factory=dict)
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
    for part in components(config):
        if (partition := its_partition(part, there)) is not None:
            found |= dict.fromkeys(_of_component(part, config, known, partition))
    return list(found)


def _of_component(part: Component, config: Config, known: Accounting, partition: Partition) -> Iterator[str]:
    slurm = config.launcher.slurm
    account = (slurm.account or known.default_account).lower()
    own = [one for one in known.mine if one.account == account]
    # One for the partition goes before one for all.
    mine = next((one for one in own if one.partition == partition.name), None) or next(
        (one for one in own if not one.partition), None
    )
    if mine is None:
        if own and "associations" in known.enforced:
            yield (
                f"You may use account {account} only in {_and(one.partition for one in own)}, and not in "
                f"partition {partition.name}."
            )
        return
    qos = slurm.qos or mine.default_qos or (mine.qos[0] if len(mine.qos) == 1 else _NORMAL)
    if slurm.qos and "qos" in known.enforced and slurm.qos not in mine.qos:
        yield f"Account {account} may not use the QOS {slurm.qos}; {_near(slurm.qos, mine.qos)}"
        return
    if (
        partition.qos_allowed is not None and qos not in partition.qos_allowed
    ) or qos in partition.qos_denied:
        allowed = partition.qos_allowed or [one for one in mine.qos if one not in partition.qos_denied]
        yield f"Partition {partition.name} takes no jobs of the QOS {qos}; {_near(qos, allowed)}"
        return
    if "limits" in known.enforced:
        yield from _limits(_wanted(part), slurm.time, known, mine, (partition.qos, qos))


def _limits(
    wanted: Mapping[str, int], time: str | None, known: Accounting, mine: Association, names: tuple[str, str]
) -> Iterator[str]:
    """Yield what a job asks for that it may never have.

    Args:
        wanted: What it asks for at least.
        time: Its time limit.
        known: What the accounting says.
        mine: The association that it would run under.
        names: The QOS of the partition, and the job's.
    """
    chosen = [known.qos[name] for name in dict.fromkeys(names) if name in known.qos]
    if len(chosen) > 1 and chosen[1].is_first:
        chosen.reverse()
    waits = "Slurm would let it wait for ever."
    if mine.most_jobs == 0:
        yield f"Account {mine.account} lets you run no jobs: {waits}"
    limits = [(f"a job of the QOS {one.name}", one.most_seconds) for one in chosen]
    limits.append((f"your jobs of account {mine.account}", mine.most_seconds))
    whose, seconds = next(((whose, most) for whose, most in limits if most is not None), ("", None))
    if time and seconds is not None and limit_seconds(time) > seconds:
        yield f"launcher.slurm.time {time} is more than the {span(seconds)} of {whose}: {waits}"
    for name, count in wanted.items():
        found: list[tuple[str, int]] = []
        # Of each kind the first limit that is set holds; of groups those of all accounts above as well.
        per_job = [(f"a job of the QOS {one.name}", one.most) for one in chosen]
        per_job.append((f"a job of account {mine.account}", mine.most))
        groups = [(f"all jobs of the QOS {one.name}", one.group) for one in chosen]
        kinds = [
            per_job,
            [(f"a user of the QOS {one.name}", one.of_user) for one in chosen],
            [(f"an account of the QOS {one.name}", one.of_account) for one in chosen],
            groups,
        ]
        for kind in kinds:
            found += [(who, most[name]) for who, most in kind if name in most][:1]
        if not any(name in most for _, most in groups):
            above = [mine, *known.above(mine.account)]
            found += [
                (f"all jobs of account {one.account}", one.group[name]) for one in above if name in one.group
            ]
        if found and count > min(most for _, most in found):
            whose, most = min(found, key=lambda one: one[1])
            yield f"The job asks for {count} {_word(name)}, and {whose} may have {most}: {waits}"
        whose, least = next(((one.name, one.least[name]) for one in chosen if name in one.least), ("", 0))
        if name in _EXACT and count < least:
            yield (
                f"The job asks for {count} {_word(name)}, and a job of the QOS {whose} must ask for {least}: "
                f"{waits}"
            )


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
        number, unit = (value[:-1], value[-1:]) if value[-1:] in "KMGT" else (value, "")
        if number.isdigit():
            found[name] = mebibytes(number + (unit or "M")) if name == "mem" else int(number)
    return found


def _seconds(text: str) -> int | None:
    return limit_seconds(text) if text[:1].isdigit() else None


def _near(value: str, known: Iterable[str]) -> str:
    names = sorted(known)
    there = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}." if names else "there is none."
    return near(value, names) or there


def _and(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))
