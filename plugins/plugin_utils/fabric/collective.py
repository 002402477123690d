# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate the all-reduce over all nodes: how fast it is, and which nodes slow it down or fail.

Pure. The bus bandwidth is in GB/s, as nccl-tests print it; links are in Gb/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_evaluation import Bounds, evaluate

RATE_SHARE = 0.5
"""Warn when the bus bandwidth is below this share of the links' rate."""


def evaluate_collective(
    nodes: Mapping[str, str], job: Mapping[str, Any], slow_share: float = 0.5
) -> dict[str, Any]:
    """Return the result as plain data.

    Args:
        nodes: addresses by name of the nodes that took part, in the order of ranks.
        job: how the job ended, as its agent reports it; its progress holds rank 0's result.
        slow_share: a pair of nodes is slow below this share of the usual bandwidth.
    """
    result: Mapping[str, Any] = (job.get("progress") or {}).get("collective") or {}
    names = {address: name for name, address in nodes.items()}
    reasons: dict[str, list[str]] = {name: [] for name in nodes}
    findings: list[str] = []
    warnings: list[str] = []
    finished = job.get("state") == "finished"
    if not finished:
        findings.append(_failure(job))
        for name in {str(one["node"]) for one in job.get("failures") or ()} & set(nodes):
            reasons[name].append(next(one["reason"] for one in job["failures"] if one["node"] == name))
        if not any(reasons.values()):  # it failed, but no node is known to be faulty
            reasons[next(iter(nodes))].append(_failure(job))
    links = [
        (names.get(one, one), names.get(other, other), float(rate))
        for one, other, rate in result.get("links_gbit") or ()
    ]
    bandwidth = {pair: rate for one, other, rate in links for pair in ((one, other), (other, one))}
    outcome = evaluate(list(nodes), bandwidth, {}, {}, Bounds(share=slow_share))
    for name, reason in outcome.nodes.items():
        reasons[name].append(reason)
        findings.append(f"{name}: {reason}")
    for (one, other), reason in outcome.links.items():
        findings.append(f"{one} <-> {other}: {reason}")
        for name in (one, other):
            reasons[name].append(f"{one} <-> {other}: {reason}")
    warnings += outcome.unclear
    rates = {names.get(name, name): float(rate) for name, rate in (result.get("rates_gbit") or {}).items()}
    sizes: Sequence[Mapping[str, Any]] = result.get("sizes") or ()
    best = max((float(size["busbw"]) for size in sizes), default=None)
    if best is not None and rates and 8 * best < RATE_SHARE * min(rates.values()):
        warnings.append(
            f"the best bus bandwidth is {best:.3g} GB/s, {8 * best / min(rates.values()):.0%} of a link's "
            f"{min(rates.values()):g} Gb/s"
        )
    if result.get("note"):
        warnings.append(str(result["note"]))
    return {
        "ok": not any(reasons.values()),
        "job": str(job.get("job", "")),
        "nodes": list(nodes),
        "verdicts": {name: {"ok": not why, "reason": "; ".join(why)} for name, why in reasons.items()},
        "findings": findings,
        "warnings": warnings,
        "backend": str(result.get("backend", "")),
        "ranks": int(result.get("ranks") or 0),
        "sizes": [dict(size) for size in sizes],
        "busbw": best,
        "links_gbit": [list(link) for link in links],
        "usual_gbit": outcome.usual_gbit,
        "rates_gbit": rates,
    }


def _failure(job: Mapping[str, Any]) -> str:
    """Return why a job did not finish, in one sentence."""
    why = str(job.get("reason") or "").rstrip(".")
    if not why:
        ends = listed(sorted({str(one["reason"]).rstrip(".") for one in job.get("failures") or ()}))
        why = ends or f"its job is {job.get('state') or 'not known'}"
    return f"the all-reduce did not end well: {why}"
