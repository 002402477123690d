# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA between the containers: evaluate the devices of each, and what each pair measured.

Pure: it reads nothing and prints nothing. Bandwidths are in Gb/s, latencies in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import pair_evaluation
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_evaluation import Bounds, Pair

FULL_MATRIX_NODES = 128
RATE_SHARE = 0.7
"""Warn when the usual bandwidth is below this share of the links' rate."""


class Sample(NamedTuple):
    """How much was measured, if not all pairs.

    Attributes:
        rounds: how many rounds were measured, …
        of: … of how many.
    """

    rounds: int
    of: int

    def __str__(self) -> str:
        """Return what was measured and how certain the result is, in one sentence."""
        return (
            f"Sampled: {self.rounds} of {self.of} rounds. Every node is measured with about {self.rounds} "
            f"others, so that a bad one is found; a single bad pair is met with "
            f"{100 * self.rounds / self.of:.2g} %."
        )


class Rdma(NamedTuple):
    """The result for the whole cluster.

    Attributes:
        nodes: the nodes of this run in the order of ranks.
        reasons: why a node is faulty, for each faulty node.
        findings: one sentence for each cause.
        warnings: what does not fail the run.
        bandwidth_gbit: from the first to the second of a pair.
        latency_us: of pairs, the lower rank first.
        sent_gbit, received_gbit, node_latency_us: medians by node.
        usual_gbit, usual_us: medians of the cluster.
        rates: rates of the links by node, as far as they are known.
        sample: how much was measured; None if every pair was.
        bare: nodes whose kernel shows no RDMA device.
    """

    nodes: list[str]
    reasons: dict[str, str]
    findings: list[str]
    warnings: list[str]
    bandwidth_gbit: dict[Pair, float]
    latency_us: dict[Pair, float]
    sent_gbit: dict[str, float | None]
    received_gbit: dict[str, float | None]
    node_latency_us: dict[str, float | None]
    usual_gbit: float | None
    usual_us: float | None
    rates: dict[str, float]
    sample: Sample | None
    bare: list[str]


def device_problems(answer: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the problems and the warnings about a container's RDMA devices that rdma_probe found."""
    seen: Mapping[str, Any] = answer.get("found") or {}
    usable: Mapping[str, str] = seen.get("usable") or {}
    owners = sorted({owner for owner in usable.values() if owner})
    given = list(answer.get("given") or [])
    problems, warnings = [], []
    closed = [path for path in given if path not in usable]
    if closed:
        problems.append(f"its container was given {listed(closed)}, but cannot open {_it(closed)}")
    if answer.get("given_all"):
        if len(owners) > 1:
            warnings.append(f"its container can use all RDMA devices of the node: {listed(owners)}")
    else:
        others = [path for path in usable if path not in given]
        if others:
            problems.append(f"its container can use {listed(others)}, which it was not given")
        foreign = list(seen.get("foreign") or [])
        if foreign:
            warnings.append(f"its container has {listed(foreign)}, but not the interface of {_it(foreign)}")
    return problems, warnings


def evaluate_rdma(
    nodes: Sequence[str],
    gathered: Mapping[str, Mapping[str, Any]],
    results: Mapping[str, Mapping[str, Any]],
    sample: Sample | None = None,
    bounds: Bounds = Bounds(),  # noqa: B008  # immutable
) -> Rdma:
    """Evaluate RDMA between the containers.

    Args:
        nodes: the nodes of this run, in the order of ranks.
        gathered: what rdma_probe found on each before the rounds.
        results: the results of their rounds, for the nodes that measured.
        sample: how much was measured, if not every pair.
        bounds: when a pair counts as slow.
    """
    reasons: dict[str, list[str]] = {name: [] for name in nodes}
    findings: list[str] = []
    warnings: list[str] = []
    causes: dict[str, list[str]] = {}
    by_warning: dict[str, list[str]] = {}
    for name in nodes:
        answer = gathered.get(name) or {"reason": "it was not gathered"}
        bad, odd = device_problems(answer)
        mine = str(answer.get("reason") or "") or str((results.get(name) or {}).get("reason") or "")
        for cause in [*([mine] if mine else []), *bad]:
            causes.setdefault(cause, []).append(name)
        for warning in odd:
            by_warning.setdefault(warning, []).append(name)
    for cause, who in causes.items():
        findings.append(f"{listed(who)}: {cause}")
        for name in who:
            reasons[name].append(cause)
    warnings += [f"{listed(who)}: {warning}" for warning, who in by_warning.items()]
    measured = [name for name in nodes if name in results and not results[name].get("reason")]
    bandwidth, latency, failed = pairs_of(measured, results)
    result = pair_evaluation.evaluate(measured, bandwidth, latency, failed, bounds)
    rates = {
        name: float(rate)
        for name in nodes
        if (rate := (gathered.get(name, {}).get("found") or {}).get("rate_gbit"))
    }
    usual_rate = max(rates.values(), key=list(rates.values()).count) if rates else None
    for name, reason in result.nodes.items():
        if usual_rate is not None and rates.get(name, usual_rate) != usual_rate:
            reason = f"{reason}; its link runs at {rates[name]:g} Gb/s, the others' at {usual_rate:g}"
        findings.append(f"{name}: {reason}")
        reasons[name].append(reason)
    for (one, other), reason in result.links.items():
        findings.append(f"{one} <-> {other}: {reason}")
        for name in (one, other):
            reasons[name].append(f"{one} <-> {other}: {reason}")
    warnings += result.unclear
    usual = result.usual_gbit
    if usual is not None and usual_rate is not None and usual < RATE_SHARE * usual_rate:
        warnings.append(
            f"the usual bandwidth is {usual:.3g} Gb/s, {usual / usual_rate:.0%} of the links' "
            f"{usual_rate:g} Gb/s"
        )
    return Rdma(
        nodes=list(nodes),
        reasons={name: "; ".join(why) for name, why in reasons.items() if why},
        findings=findings,
        warnings=warnings,
        bandwidth_gbit=bandwidth,
        latency_us=latency,
        sent_gbit=result.sent_gbit,
        received_gbit=result.received_gbit,
        node_latency_us=result.latency_us,
        usual_gbit=usual,
        usual_us=result.usual_us,
        rates=rates,
        sample=sample,
        bare=[name for name in nodes if (gathered.get(name, {}).get("found") or {}).get("shown") == []],
    )


def pairs_of(
    nodes: Sequence[str], results: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[Pair, float], dict[Pair, float], dict[Pair, str]]:
    """Return the bandwidths, latencies and failures of pairs of nodes.

    Both nodes of a pair have its whole result, so one of them suffices.
    """
    rank = {name: number for number, name in enumerate(nodes)}
    bandwidth: dict[Pair, float] = {}
    latency: dict[Pair, float] = {}
    failed: dict[Pair, str] = {}
    for one in nodes:
        for other, (sent, received, late) in (results[one].get("pairs") or {}).items():
            if other not in rank:
                continue
            if sent is not None:
                bandwidth[one, other] = float(sent)
            if received is not None:
                bandwidth[other, one] = float(received)
            if late is not None:
                latency[_ordered(one, other, rank)] = float(late)
        for other, why in (results[one].get("errors") or {}).items():
            if other in rank:
                failed.setdefault(_ordered(one, other, rank), str(why))
    return bandwidth, latency, failed


def as_dict(rdma: Rdma) -> dict[str, Any]:
    """Return the result as plain data, without the pairs beyond 128 nodes."""
    whole = len(rdma.nodes) <= FULL_MATRIX_NODES
    matrix: dict[str, dict[str, float]] = {}
    latencies: dict[str, dict[str, float]] = {}
    if whole:
        for (one, other), value in rdma.bandwidth_gbit.items():
            matrix.setdefault(one, {})[other] = value
        for (one, other), value in rdma.latency_us.items():
            latencies.setdefault(one, {})[other] = value
    return {
        "ok": not rdma.reasons,
        "nodes": rdma.nodes,
        "verdicts": {
            name: {"ok": name not in rdma.reasons, "reason": rdma.reasons.get(name, "")}
            for name in rdma.nodes
        },
        "findings": rdma.findings,
        "warnings": rdma.warnings,
        "bandwidth_gbit": matrix,
        "latency_us": latencies,
        "by_node": {
            name: {
                "sent_gbit": rdma.sent_gbit.get(name),
                "received_gbit": rdma.received_gbit.get(name),
                "latency_us": rdma.node_latency_us.get(name),
                "rate_gbit": rdma.rates.get(name),
            }
            for name in rdma.nodes
        },
        "usual_gbit": rdma.usual_gbit,
        "usual_us": rdma.usual_us,
        "without_device": rdma.bare,
        "sample": dict(rdma.sample._asdict(), text=str(rdma.sample)) if rdma.sample else None,
    }


def _it(items: Sequence[str]) -> str:
    return "it" if len(items) == 1 else "them"


def _ordered(one: str, other: str, rank: Mapping[str, int]) -> Pair:
    return (one, other) if rank[one] < rank[other] else (other, one)
