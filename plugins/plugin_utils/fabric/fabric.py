# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric between the containers: what each of them measured, and the evaluation's result.

Pure: it reads nothing and prints nothing. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from heapq import nlargest
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import unpacked

FULL_MATRIX_NODES = 128
LONGEST = 5
"""How many of the slowest pairs are kept."""
Pair = tuple[str, str]


class Measurement(NamedTuple):
    """What the container of one node measured.

    Attributes:
        measured: whether the measurement ran; if not, `reason` says why.
        reason: one sentence.
        container_state: the engine's state of the container, or `missing`.
        method: `icmp` or `tcp`.
        note: why the method is not the usual one.
        link: name of the interface that has MY_IP.
        link_up: whether it is up and has a carrier; None if unknown.
        duplicate: which other host has MY_IP, in one sentence; empty for none.
        rtt_us: median round-trip time by peer; None for a silent peer. Peers not measured are missing.
        loss: share of unanswered requests, for peers that answered some of them.
        errors: by peer, the kernel's error if a request could not be sent.
        ssh: for the peers whose sshd was probed, what is wrong; empty if it greeted.
        login: for its own container and others, why ssh could not log in there; empty if it could.
    """

    measured: bool
    reason: str = ""
    container_state: str = "running"
    method: str = "icmp"
    note: str = ""
    link: str = ""
    link_up: bool | None = None
    duplicate: str = ""
    rtt_us: Mapping[str, float | None] = {}
    loss: Mapping[str, float] = {}
    errors: Mapping[str, str] = {}
    ssh: Mapping[str, str] = {}
    login: Mapping[str, str] = {}


class HostResult(NamedTuple):
    """Whether a node is fine on the fabric; if it is not, or is slow, why."""

    ok: bool
    reason: str = ""


class Sample(NamedTuple):
    """How much of the fabric was measured, if not all of it.

    Attributes:
        peers: how many peers each node probed, …
        of: … of how many others in this run.
        measured: the least number of peers that a node measured or was measured by.
        pairs: the share of all pairs that was measured: the chance of finding a single bad pair.
    """

    peers: int
    of: int
    measured: int
    pairs: float

    def __str__(self) -> str:
        """Return what was measured and how certain the result is, in one sentence."""
        return (
            f"Sampled: {self.peers} of {self.of} peers each. Every node and its link are measured "
            f"{self.measured} times, so that a bad one is found; a single bad pair is met with "
            f"{100 * self.pairs:.2g} %."
        )


class Fabric(NamedTuple):
    """The result for the whole cluster.

    Attributes:
        nodes: the nodes of this run in the order of ranks.
        outside: the nodes of the cluster that took no part in this run.
        verdicts: the result of each node of this run.
        findings: one sentence for each cause that fails the run.
        warnings: what does not fail the run: slow nodes, losses, silent nodes outside this run.
        rtt_us: median round-trip times, row to column; None if there was no answer.
        median_us: the median of each node's links; None without any.
        cluster_median_us: the median of these.
        slow: nodes whose median is much longer than the cluster's.
        failed_pairs: pairs of this run where the second did not answer the first.
        method: `icmp`, `tcp`, `mixed`, or empty if nothing was measured.
        sample: how much was measured; None if every pair was.
    """

    nodes: list[str]
    outside: list[str]
    verdicts: dict[str, HostResult]
    findings: list[str]
    warnings: list[str]
    rtt_us: Mapping[str, Mapping[str, float | None]]
    median_us: dict[str, float | None]
    cluster_median_us: float | None
    slow: list[str]
    failed_pairs: list[Pair]
    method: str
    sample: Sample | None

    @property
    def ok(self) -> bool:
        """Whether no node failed."""
        return all(outcome.ok for outcome in self.verdicts.values())


def measurement(result: Mapping[str, Any]) -> Measurement:
    """Return the measurement in a registered result of the module fabric_probe."""
    if not result.get("measured"):
        reason = str(result.get("reason") or result.get("msg") or "the measurement did not run")
        return Measurement(False, reason, str(result.get("container_state", "unknown")))
    return Measurement(
        measured=True,
        method=str(result["method"]),
        note=str(result["note"]),
        link=str(result["link"]["name"]),
        link_up=result["link"]["up"],
        duplicate=result.get("duplicate", ""),
        rtt_us=unpacked(result["rtt_us"]),
        loss=result["loss"],
        errors=result["errors"],
        ssh=result["ssh"],
        login=result["login"],
    )


def measurements(result: Mapping[str, Any], rails: int) -> list[Measurement]:
    """Return the measurement of each rail in a result of the module fabric_probe.

    If the container does not run, the result has the first rail only, which then counts for all rails.
    """
    first = measurement(result)
    further = [measurement(one) for one in result.get("rails") or ()]
    return [first, *(further or [first] * (rails - 1))]


def about_to_change(
    work: Mapping[str, Collection[str]], results: Mapping[str, Sequence[Mapping[str, Mapping[str, Any]]]]
) -> set[str]:
    """Return the nodes whose fabric connection a run would change.

    After an upgrade every role checks every node, and finds nothing to change on most.

    Args:
        work: node -> the roles that have work there.
        results: role -> the predicted results of its relevant tasks, each by node. A task without a result
            on a node counts as a change.
    """
    return {
        node
        for node, roles in work.items()
        for role, tasks in results.items()
        if role in roles and any(task.get(node, {"changed": True}).get("changed") for task in tasks)
    }


def lasting(measured: Mapping[str, Measurement], changing: Set[str]) -> dict[str, Measurement]:
    """Return the measurements without the faults that a change of some nodes may repair.

    Answers from those nodes are kept: they show that the node that received them is not cut off.
    """

    def stays(one: str, other: str) -> bool:
        return not {one, other} & changing

    return {
        name: own._replace(
            duplicate=own.duplicate if name not in changing else "",
            rtt_us={
                peer: rtt
                for peer, rtt in own.rtt_us.items()
                if rtt is not None or own.ssh.get(peer) == "" or stays(name, peer)
            },
            ssh={peer: text for peer, text in own.ssh.items() if not text or stays(name, peer)},
            login={peer: text for peer, text in own.login.items() if not text or stays(name, peer)},
        )
        for name, own in measured.items()
        if own.measured or name not in changing
    }


def as_dict(fabric: Fabric) -> dict[str, Any]:
    """Return the fabric as plain data: its attributes, with 1000 failing pairs at most, and summaries.

    `by_node` has each node's shortest and longest round-trip time and how many of this run did not answer it,
    `longest` the five slowest pairs with their times. Beyond 128 nodes `rtt_us` is empty, since a thousand
    nodes would give a million numbers.
    """
    whole = len(fabric.nodes) <= FULL_MATRIX_NODES
    members = set(fabric.nodes)
    answered = [
        (one, other, rtt)
        for one, times in fabric.rtt_us.items()
        for other, rtt in times.items()
        if rtt is not None and other in members
    ]
    return {
        "ok": fabric.ok,
        "nodes": fabric.nodes,
        "outside": fabric.outside,
        "verdicts": {
            name: {"ok": outcome.ok, "reason": outcome.reason} for name, outcome in fabric.verdicts.items()
        },
        "findings": fabric.findings,
        "warnings": fabric.warnings,
        "rtt_us": {one: dict(times) for one, times in fabric.rtt_us.items()} if whole else {},
        "by_node": {name: _row(fabric.rtt_us.get(name), members) for name in fabric.nodes},
        "longest": [list(pair) for pair in nlargest(LONGEST, answered, key=lambda pair: pair[2])],
        "median_us": fabric.median_us,
        "cluster_median_us": fabric.cluster_median_us,
        "slow": fabric.slow,
        "failed_pairs": [list(pair) for pair in fabric.failed_pairs[:1000]],
        "method": fabric.method,
        "sample": dict(fabric.sample._asdict(), text=str(fabric.sample)) if fabric.sample else None,
    }


def _row(times: Mapping[str, float | None] | None, members: Set[str]) -> dict[str, float | None]:
    """Return a node's shortest and longest round-trip time, and how many nodes of the run were silent."""
    known = [rtt for rtt in (times or {}).values() if rtt is not None]
    return {
        "least_us": min(known, default=None),
        "most_us": max(known, default=None),
        "silent": None if times is None else sum(times[name] is None for name in times.keys() & members),
    }
