# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources of a cluster, and the checks for jobs that it could never run. Pure functions.

Slurm accepts a job that needs more nodes than a partition has, and lets it wait for ever. So everything known
is checked before the job is submitted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rdm_core.config import JobConfig
from rdm_core.config.slurm import Component, components, generic_resources, limit_seconds

_FIELD = re.compile(r"(?:^| )([A-Za-z][A-Za-z/:_]*)=")
_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Partition:
    """A partition.

    Attributes:
        name: Its name.
        is_default: Whether jobs without a partition go there; None if unknown.
        state: ``UP``, or another state, in which it accepts or runs no jobs.
        nodes: How many it has.
        most_nodes: How many nodes a job may have; None for all.
        least_nodes: How many nodes a job must have.
        qos: The QOS whose limits apply to its jobs; empty for none.
        qos_allowed: The QOS that its jobs may have; None for all.
        qos_denied: The QOS that its jobs may not have.
        most_seconds: The longest time limit of a job; None without one.
        accounts: The accounts that may use it; None for all.
        denied: The accounts that may not use it.
    """

    name: str
    is_default: bool | None = False
    state: str = "UP"
    nodes: int = 0
    most_nodes: int | None = None
    most_seconds: int | None = None
    accounts: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()
    least_nodes: int = 0
    qos: str = ""
    qos_allowed: tuple[str, ...] | None = None
    qos_denied: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterNode:
    """A node.

    Attributes:
        name: Its name.
        partitions: The partitions that it is in.
        gres: Its generic resources, such as ``{"gpu:a10": 4}``.
        features: The features that a job's constraint can name.
        cpus: How many CPUs it has.
        mem: The memory for jobs, in MiB.
    """

    name: str
    partitions: tuple[str, ...]
    gres: Mapping[str, int]
    features: tuple[str, ...]
    cpus: int
    mem: int

    def has(self, name: str) -> int:
        """Return how many of a generic resource it has, of all types if the name has no type."""
        return sum(count for kind, count in self.gres.items() if kind == name or kind.startswith(f"{name}:"))


def partitions(text: str) -> list[Partition]:
    """Return the partitions that ``scontrol --oneliner show partition`` printed."""
    return [
        Partition(
            name=fields["PartitionName"],
            is_default=fields.get("Default") == "YES",
            state=fields.get("State", "UP"),
            nodes=_count(fields.get("TotalNodes")) or 0,
            most_nodes=_count(fields.get("MaxNodes")),
            most_seconds=_seconds(fields.get("MaxTime")),
            accounts=_list(fields["AllowAccounts"]) if fields.get("AllowAccounts", "ALL") != "ALL" else None,
            denied=_list(fields.get("DenyAccounts", "")),
            least_nodes=_count(fields.get("MinNodes")) or 0,
            qos=_plain(fields.get("QoS", "")),
            qos_allowed=_list(fields["AllowQos"]) if fields.get("AllowQos", "ALL") != "ALL" else None,
            qos_denied=_list(fields.get("DenyQos", "")),
        )
        for fields in _lines(text)
        if "PartitionName" in fields
    ]


def nodes(text: str) -> list[ClusterNode]:
    """Return the nodes that ``scontrol --oneliner show node`` printed."""
    return [
        ClusterNode(
            name=fields["NodeName"],
            partitions=_list(fields.get("Partitions", "")),
            # Such as `gpu:a10:4(S:0-1)`.
            gres=generic_resources(re.sub(r"\([^)]*\)", "", _plain(fields.get("Gres", "")))),
            features=_list(fields.get("AvailableFeatures", "")),
            cpus=_count(fields.get("CPUEfctv")) or _count(fields.get("CPUTot")) or 0,
            mem=_count(fields.get("RealMemory")) or 0,
        )
        for fields in _lines(text)
        if "NodeName" in fields
    ]


def with_gpus(
    config: JobConfig, accelerator: str, there: Sequence[Partition], machines: Sequence[ClusterNode]
) -> JobConfig:
    """Return the configuration with a request for one GPU per process on each node.

    The job's own requests for GPUs stay. Partitions for which Slurm manages no GPUs get no request.
    """
    launcher = config.launcher
    if accelerator == "cpu" or launcher.devices_per_node is None:
        return config
    each = str(launcher.devices_per_node)
    requested = {
        part.partition: each
        for part in components(config)
        if not part.gpus and _has_gpus(part, there, machines)
    }
    slurm = replace(launcher.slurm, gpus_per_node={**launcher.slurm.gpus_per_node, **requested})
    return replace(config, launcher=replace(launcher, slurm=slurm))


def without_gpus(
    config: JobConfig, accelerator: str, there: Sequence[Partition], machines: Sequence[ClusterNode]
) -> list[str]:
    """Return the components that would have fewer GPUs than processes, after :func:`with_gpus`."""
    if accelerator == "cpu":
        return []
    found = []
    for part in components(config):
        of = f" of partition {part.partition}" if part.partition else ""
        if part.gpus and part.slots > part.gpus:
            found.append(
                f"launcher.devices_per_node is {part.slots}, but the job requests {part.gpus} GPUs of each "
                f"node{of}; change launcher.slurm.{'gpus_per_node' if part.gpus_per_node else 'gres'}."
            )
        elif not part.gpus and _has_gpus(part, there, machines):
            found.append(
                f"The job requests no GPUs of the nodes{of}; give launcher.devices_per_node, "
                "launcher.slurm.gpus_per_node or launcher.slurm.gres."
            )
    return found


def _has_gpus(part: Component, there: Sequence[Partition], machines: Sequence[ClusterNode]) -> bool:
    """Whether Slurm manages GPUs on the nodes of a component's partition.

    False for an unknown partition, for which :func:`problems` refuses the job.
    """
    known = its_partition(part, there)
    return known is not None and any(node.has("gpu") for node in machines if known.name in node.partitions)


def its_partition(part: Component, there: Sequence[Partition]) -> Partition | None:
    """Return a component's partition, by default the cluster's default one; None if unknown."""
    requested = part.partition
    return next((one for one in there if (one.name == requested if requested else one.is_default)), None)


def problems(config: JobConfig, there: Sequence[Partition], machines: Sequence[ClusterNode]) -> list[str]:
    """Return why the cluster could never run a job that is valid in itself, one sentence each."""
    found = unknown_partitions(config, there)
    for part in components(config):
        if (known := its_partition(part, there)) is not None:
            found += _component(part, config, known, machines)
    return found


def unknown_partitions(config: JobConfig, there: Sequence[Partition]) -> list[str]:
    """Return the problems of a job's partitions that do not exist or are unknown, one sentence each."""
    names = [one.name for one in there]
    found = []
    for part in components(config):
        if its_partition(part, there) is not None:
            continue
        if part.partition:
            instead = near(part.partition, names) or f"there are {', '.join(names)}."
            found.append(f"Slurm has no partition {part.partition}; {instead}")
        else:
            is_known = all(one.is_default is not None for one in there)
            why = "Slurm has no default partition" if is_known else "The default partition is not known"
            found.append(f"{why}; give launcher.slurm.partition: {' or '.join(names)}.")
    return found


def _component(
    part: Component, config: JobConfig, known: Partition, machines: Sequence[ClusterNode]
) -> Iterator[str]:
    its = [node for node in machines if known.name in node.partitions]
    yield from _size(part, config, known)
    able = its
    for name, count in part.generic.items():
        able = [node for node in able if node.has(name) >= count]
        most = max((node.has(name) for node in its), default=0)
        if not most:
            has = sorted({f"{kind}:{count}" for node in its for kind, count in node.gres.items()})
            yield (
                f"No node of partition {known.name} has {name}; "
                f"{'they have ' + ', '.join(has) if has else 'they have no generic resources'}."
            )
        elif most < count:
            yield _too_much(known.name, f"of {name}", most, count)
    cpus, memory = int(part.cpus or 0), mebibytes(part.mem)
    for what, requested, most in (
        ("CPUs", cpus, max((node.cpus for node in its), default=cpus)),
        ("MiB of memory", memory, max((node.mem for node in its), default=memory)),
    ):
        if requested > most:
            yield _too_much(known.name, what, most, requested)
    able = [node for node in able if node.cpus >= cpus and node.mem >= memory]
    features = {feature for node in its for feature in node.features}
    for feature in _FEATURE.findall(re.sub(r"\*[0-9]+", "", part.constraint)):
        if feature not in features:
            instead = near(feature, features) or (
                f"there are {', '.join(sorted(features))}." if features else "they have no features."
            )
            yield f"No node of partition {known.name} has the feature {feature}; {instead}"
    if 0 < len(able) < part.nodes <= known.nodes:
        yield (
            f"Only {len(able)} of the {known.nodes} nodes of partition {known.name} have all that the job "
            f"requests on each of {part.nodes}."
        )


def _too_much(partition: str, what: str, most: int, requested: int) -> str:
    return f"A node of partition {partition} has at most {most} {what}, and the job requests {requested}."


def _size(part: Component, config: JobConfig, known: Partition) -> Iterator[str]:
    """Yield the partition's objections to the number of nodes, the time limit and the account."""
    slurm = config.launcher.slurm
    if known.state != "UP":
        yield f"Partition {known.name} is {known.state.lower()}."
    most = min(known.nodes, known.nodes if known.most_nodes is None else known.most_nodes)
    if part.nodes > most:
        limit = "lets a job have" if most < known.nodes else "has"
        yield (
            f"The job requests {part.nodes} nodes, but partition {known.name} {limit} {most}: Slurm would "
            "let it wait for ever."
        )
    if part.nodes < known.least_nodes:
        yield (
            f"Jobs of partition {known.name} have at least {known.least_nodes} nodes, and this one requests "
            f"{part.nodes}: Slurm would let it wait for ever."
        )
    if slurm.time and known.most_seconds is not None and limit_seconds(slurm.time) > known.most_seconds:
        yield (
            f"launcher.slurm.time {slurm.time} is more than the {span(known.most_seconds)} of partition "
            f"{known.name}: Slurm would let the job wait for ever."
        )
    refused = known.accounts is not None and slurm.account not in known.accounts
    if slurm.account and (refused or slurm.account in known.denied):
        yield f"Partition {known.name} takes no jobs of account {slurm.account}."


def _lines(text: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each line; values may contain spaces."""
    for line in text.splitlines():
        marks = list(_FIELD.finditer(line))
        ends = [*(mark.start() for mark in marks[1:]), len(line)]
        yield {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=bool(marks))}


def _plain(value: str) -> str:
    return "" if value in ("(null)", "N/A", "None") else value


def _list(value: str) -> tuple[str, ...]:
    return tuple(filter(None, _plain(value).split(",")))


def _count(value: str | None) -> int | None:
    found = re.match(r"[0-9]+", value or "")
    return int(found[0]) if found else None


def _seconds(value: str | None) -> int | None:
    # The form is days-hours:minutes:seconds, or UNLIMITED.
    return limit_seconds(value) if value and value[0].isdigit() else None


def span(seconds: int) -> str:
    """Return a time as Slurm writes it, ``days-hours:minutes:seconds``."""
    days, rest = divmod(seconds, 86400)
    hours, minutes = divmod(rest // 60, 60)
    return f"{days}-{hours:02}:{minutes:02}:00" if days else f"{hours:02}:{minutes:02}:{rest % 60:02}"


def mebibytes(text: str) -> int:
    """Return the value of `--mem` in MiB."""
    if not text:
        return 0
    unit = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
    return int(int(text.rstrip("KMGT")) * unit.get(text[-1], 1))


def near(value: str, known: Iterable[str]) -> str:
    """Return "did you mean" with the nearest known name; empty if none is near."""
    close = difflib.get_close_matches(value, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""
