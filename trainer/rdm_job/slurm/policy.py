# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks for jobs that Slurm's accounting would never let run. Pure functions.

Slurm accepts a job that needs more than its account or QOS may ever have, and lets it wait for ever. So the
limits that Slurm enforces (``AccountingStorageEnforce``) are checked before the job is submitted. Their
precedence is that of Slurm's "Resource Limits": the partition's QOS, the job's QOS, the user's association.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rdm_core.config import JobConfig
from rdm_core.config.slurm import Component, components, limit_seconds
from rdm_job.slurm.accounting import Accounting, Association, Limits, Qos
from rdm_job.slurm.limits import Partition, its_partition, mebibytes, near, span

_NORMAL = "normal"
"""The QOS of a job whose association has several QOS and no default one."""
_MINUTES = "-minutes"
"""The suffix of a resource's name for the resource times a job's minutes."""


def problems(config: JobConfig, known: Accounting, there: Sequence[Partition]) -> list[str]:
    """Return why the accounting would never let a job run that is valid in itself, one sentence each."""
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
    jobs: Counter[_OfJobs] = Counter()
    for part in components(config):
        if (partition := its_partition(part, there)) is None:
            continue
        under = _association(known, (slurm.account or known.default_account).lower(), partition)
        if isinstance(under, str):
            found[under] = None
        elif under is not None:
            qos = slurm.qos or under.default_qos or (under.qos[0] if len(under.qos) == 1 else _NORMAL)
            if problem := _of_qos(slurm.qos, qos, known, under, partition):
                found[problem] = None
            elif "limits" in known.enforced:
                chosen = _chosen(known, partition.qos, qos)
                found |= dict.fromkeys(_of_time(slurm.time, known, under, chosen))
                found |= dict.fromkeys(_too_little(part, chosen))
                requested = _requested(part) | _of_minutes(part, slurm.time, known, qos)
                held.append((requested, _limits(requested, part, known, under, chosen)))
                jobs.update(_of_jobs(known, under, chosen))
    return [*_too_many(jobs), *found, *dict.fromkeys(_too_much(held))]


@dataclass(frozen=True)
class _Limit:
    """A limit of a resource.

    Attributes:
        name: Slurm's name for such limits.
        whose: Whom it limits, unique to each association, since equal limits count as one.
        resource: Slurm's name of the resource.
        most: How much is allowed.
        requested: How much a component needs on one node; None unless it is a limit per node.
        is_shared: Whether all components of a job share it.
    """

    name: str
    whose: str
    resource: str
    most: int
    requested: int | None = None
    is_shared: bool = False


@dataclass(frozen=True)
class _OfJobs:
    """A limit of the number of jobs.

    Attributes:
        name: Slurm's name of the limit.
        who: Whose jobs it limits, unique to each association.
        most: How many are allowed.
    """

    name: str
    who: str
    most: int


def _association(known: Accounting, account: str, partition: Partition) -> Association | str | None:
    """Return a job's association in a partition, or why it has none, or None if unknown."""
    own = [one for one in known.mine if one.account == account]
    # An association for the partition takes precedence over one for all.
    for scope in (partition.name, ""):
        if mine := next((one for one in own if one.partition == scope), None):
            return mine
    if not own or "associations" not in known.enforced:
        return None
    others = " and ".join(sorted(one.partition for one in own))
    return f"You may use account {account} only in {others}, and not in partition {partition.name}."


def _of_qos(
    requested: str | None, qos: str, known: Accounting, mine: Association, partition: Partition
) -> str:
    """Return why a job may not have its quality of service; empty if it may.

    Args:
        requested: The QOS that the job names; empty or None for none.
        qos: The QOS that it would get.
        known: The user's data in the accounting.
        mine: The association that it would run under.
        partition: Its partition.
    """
    if requested and "qos" in known.enforced and requested not in mine.qos:
        return f"Account {mine.account} may not use the QOS {requested}; {_near(requested, mine.qos)}"
    is_allowed = partition.qos_allowed is None or qos in partition.qos_allowed
    if is_allowed and qos not in partition.qos_denied:
        return ""
    allowed = partition.qos_allowed or [one for one in mine.qos if one not in partition.qos_denied]
    return f"Partition {partition.name} takes no jobs of the QOS {qos}; {_near(qos, allowed)}"


def _chosen(known: Accounting, *names: str) -> list[Qos]:
    """Return the QOS whose limits apply, in the order of precedence."""
    chosen = [known.qos[name] for name in dict.fromkeys(names) if name in known.qos]
    if len(chosen) > 1 and chosen[1].is_first:
        chosen.reverse()
    return chosen


def _of_time(time: str | None, known: Accounting, mine: Association, chosen: Sequence[Qos]) -> Iterator[str]:
    """Yield why a job's time limit is too long."""
    limits = [(f"a job of the QOS {one.name}", one.most_seconds) for one in chosen]
    limits.append((f"your jobs of account {mine.account}", mine.most_seconds))
    held = [("MaxWall", limits)]
    # How much of the group's time has been used is unknown here.
    if "safe" in known.enforced:
        of_qos = [(f"all jobs of the QOS {one.name}", one.group_seconds) for one in chosen]
        above = (mine, *known.above(mine.account))
        held += [("GrpWall", [*of_qos, (_all_jobs_of(one), one.group_seconds)]) for one in above]
    for name, kind in held:
        whose, seconds = next(((whose, most) for whose, most in kind if most is not None), ("", None))
        if time and seconds is not None and limit_seconds(time) > seconds:
            yield (
                f"launcher.slurm.time {time} is more than the {span(seconds)} of {whose} ({name}): "
                "request no more, or Slurm lets it wait for ever."
            )


def _of_jobs(known: Accounting, mine: Association, chosen: Sequence[Qos]) -> Iterator[_OfJobs]:
    """Yield the limits of the number of jobs for a component: of each kind, the first that is set."""
    for jobs in ("Jobs", "SubmitJobs"):
        set_by_qos = set()
        for name, whose in (
            (f"Grp{jobs}", "all jobs of the QOS"),
            (f"Max{jobs}PerAccount", "an account of the QOS"),
            (f"Max{jobs}PerUser", "a user of the QOS"),
        ):
            if qos := next((one for one in chosen if name in one.counts), None):
                set_by_qos.add(name)
                yield _OfJobs(name, f"{whose} {qos.name}", qos.counts[name])
        own = f"Max{jobs}"
        if own in mine.counts and not set_by_qos & {f"{own}PerAccount", f"{own}PerUser"}:
            yield _OfJobs(own, f"your jobs of account {_where(mine)}", mine.counts[own])
        group = f"Grp{jobs}"
        if group not in set_by_qos:
            for one in (mine, *known.above(mine.account)):
                if group in one.counts:
                    yield _OfJobs(group, _all_jobs_of(one), one.counts[group])


def _too_many(jobs: Counter[_OfJobs]) -> Iterator[str]:
    """Yield why a job may never run or be submitted: Slurm counts each of its components as a job.

    Args:
        jobs: How many components count towards each limit.
    """
    for limit, count in jobs.items():
        if count <= limit.most:
            continue
        one = "the job is one" if count == 1 else f"the job's {count} components are {count}"
        # Later releases also refuse some jobs over a limit of running jobs.
        does = "refuse it" if "Submit" in limit.name else "never run it"
        where = "in the queue" if "Submit" in limit.name else "at a time"
        yield (
            f"Of {limit.who}, {limit.most or 'none'} may {'be' if 'Submit' in limit.name else 'run'} {where} "
            f"({limit.name}), and {one}: Slurm would {does}."
        )


def _too_little(part: Component, chosen: Sequence[Qos]) -> Iterator[str]:
    """Yield the resources of which a component requests too little."""
    requests = _requested(part)
    for name in _EXACT:
        whose, least = next(((one.name, one.least[name]) for one in chosen if name in one.least), ("", 0))
        if requests[name] < least:
            yield (
                f"The job requests {requests[name]} {_word(name)}, and a job of the QOS {whose} must request "
                f"{least} (MinTRES): Slurm would let it wait for ever."
            )


def _too_much(held: Sequence[tuple[Mapping[str, int], Sequence[_Limit]]]) -> Iterator[str]:
    """Yield the resources of which a job requests too much, each with its lowest limit.

    Args:
        held: The requests of each component, and the limits that apply to it.
    """
    for requested, limits in held:
        for name, count in requested.items():
            amounts = {
                limit: sum(other.get(name, 0) for other, its in held if limit in its)
                if limit.is_shared
                else limit.requested
                if limit.requested is not None
                else count
                for limit in limits
                if limit.resource == name
            }
            over = [limit for limit, much in amounts.items() if much > limit.most]
            if over:
                limit = min(over, key=lambda one: one.most)
                of = " of a node" if limit.requested is not None else ""
                yield (
                    f"The job requests {amounts[limit]} {_word(name)}{of}, and {limit.whose} may have "
                    f"{limit.most} ({limit.name}): request no more, or Slurm lets it wait for ever."
                )


def _limits(
    requested: Iterable[str], part: Component, known: Accounting, mine: Association, chosen: Sequence[Qos]
) -> list[_Limit]:
    """Return the limits that apply to a component: of each kind the first that is set.

    Group limits are those of the first QOS that sets one, or else of all accounts above the job.

    Args:
        requested: The resources that it requests.
        part: The component.
        known: The user's data in the accounting.
        mine: The association that it would run under.
        chosen: The QOS, in the order of precedence.
    """
    jobs: list[tuple[str, Limits]] = [(f"a job of the QOS {one.name}", one) for one in chosen]
    jobs.append((f"a job of account {mine.account}", mine))
    found = []
    for name in requested:
        each = _of_a_node(part).get(name)
        firsts: list[tuple[str, int | None, bool, list[tuple[str, Mapping[str, int]]]]] = [
            ("MaxTRES", None, False, [(who, one.most) for who, one in jobs]),
            ("MaxTRESMins", None, False, [(who, _by_minutes(one.minutes)) for who, one in jobs]),
            ("MaxTRESPerNode", each, False, [(who, one.of_node) for who, one in jobs if each is not None]),
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
        ]
        for limit, of_node, is_shared, kind in firsts:
            found += [
                _Limit(limit, who, name, most[name], of_node, is_shared) for who, most in kind if name in most
            ][:1]
        of_qos = [(f"all jobs of the QOS {one.name}", _of_group(one, known)) for one in chosen]
        above = (mine, *known.above(mine.account))
        of_accounts = [(_all_jobs_of(one), _of_group(one, known)) for one in above]
        for limit in ("GrpTRES", "GrpTRESMins", "GrpTRESRunMins"):
            first = [(who, group[limit]) for who, group in of_qos if name in group[limit]][:1]
            held = first or [(who, group[limit]) for who, group in of_accounts if name in group[limit]]
            found += [_Limit(limit, who, name, most[name], is_shared=True) for who, most in held]
    return found


def _of_group(one: Limits, known: Accounting) -> dict[str, Mapping[str, int]]:
    """Return the limits for all jobs together, by Slurm's names of the limits."""
    # Without "safe", Slurm starts a job although too little is left, and ends it when that is used up.
    is_held = "safe" in known.enforced
    return {
        "GrpTRES": one.group,
        "GrpTRESMins": _by_minutes(
            {name: most for name, most in one.group_minutes.items() if is_held or most == 0}
        ),
        "GrpTRESRunMins": _by_minutes(one.running_minutes),
    }


def _by_minutes(most: Mapping[str, int]) -> dict[str, int]:
    return {f"{name}{_MINUTES}": count for name, count in most.items()}


def _all_jobs_of(one: Association) -> str:
    """Return the name of all jobs of an association; a user may have several, one per partition."""
    return f"all {'your ' if one.user else ''}jobs of account {_where(one)}"


def _where(one: Association) -> str:
    return f"{one.account} in partition {one.partition}" if one.partition else one.account


_EXACT = ("node", "gres/gpu")
"""The resources of which a job gets exactly what it requests."""


def _requested(part: Component) -> dict[str, int]:
    """Return the least that a component requests of each resource, by Slurm's names."""
    requested = {"node": part.nodes, "cpu": part.nodes * int(part.cpus or 1)}
    if memory := mebibytes(part.mem):
        requested["mem"] = part.nodes * memory
    for name, count in part.generic.items():
        # A resource with a type also counts towards the total of all types.
        for known_as in dict.fromkeys((name, name.partition(":")[0])):
            requested[f"gres/{known_as}"] = requested.get(f"gres/{known_as}", 0) + part.nodes * count
    # Zero is listed too, because a limit may set a minimum.
    requested.setdefault("gres/gpu", 0)
    return requested


def _of_minutes(part: Component, time: str | None, known: Accounting, qos: str) -> dict[str, int]:
    """Return a component's requests times the minutes of its time limit; empty without a time limit.

    Args:
        part: The component.
        time: The job's time limit. Without one, Slurm sets one within its limits.
        known: The user's data in the accounting.
        qos: The job's QOS.
    """
    if not time:
        return {}
    is_safe = "safe" in known.enforced and qos in known.qos
    minutes = math.ceil(limit_seconds(time) / 60) * (known.qos[qos].safe_factor if is_safe else 1.0)
    return _by_minutes({name: math.floor(count * minutes) for name, count in _requested(part).items()})


def _of_a_node(part: Component) -> dict[str, int]:
    """Return the least that a component requests of each resource on one node."""
    requested = _requested(replace(part, nodes=1))
    del requested["node"]
    return requested


def _word(name: str) -> str:
    if name.endswith(_MINUTES):
        return f"minutes of {_word(name.removesuffix(_MINUTES))}"
    plain = {"node": "nodes", "cpu": "CPUs", "mem": "MiB of memory", "gres/gpu": "GPUs"}
    return plain.get(name, name.removeprefix("gres/"))


def _near(value: str, known: Iterable[str]) -> str:
    names = sorted(known)
    there = f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}." if names else "there is none."
    return near(value, names) or there
