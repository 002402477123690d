"""The evaluation of the all-reduce: how fast, which nodes are slow, which failed."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.collective import (
    evaluate_collective,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_schedule import chosen_rounds
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.report import collective_report, text

MIB = 1024**2
NODES = {f"n{number}": f"10.0.0.{number}" for number in range(1, 6)}


def job(slow: str = "", **changes: Any) -> dict[str, Any]:
    links = [
        [NODES[one], other, 20.0 if slow in (one, other) else 180.0] for one, other in combinations(NODES, 2)
    ]
    size = {"bytes": 256 * MIB, "times": 9, "seconds": 0.02, "algbw": 13.4, "busbw": 21.5}
    collective = {
        "backend": "nccl",
        "ranks": 40,
        "nodes": list(NODES),
        "rates_gbit": dict.fromkeys(NODES, 200.0),
        "sizes": [dict(size, bytes=MIB, busbw=1.5, algbw=1.0), size],
        "links_gbit": links,
        "note": "",
    }
    state = {"job": "collective-1", "state": "finished", "reason": "", "failures": []}
    return {**state, "progress": {"collective": {**collective, **changes}}}


def test_a_sound_cluster_is_ok_and_its_nodes_have_their_names() -> None:
    evaluated = evaluate_collective(NODES, job())
    assert evaluated["ok"]
    assert evaluated["findings"] == evaluated["warnings"] == []
    assert evaluated["busbw"] == 21.5
    assert {name for one, other, _ in evaluated["links_gbit"] for name in (one, other)} == set(NODES)
    assert text(collective_report(evaluated)).splitlines() == [
        "All-reduce: 40 ranks on 5 nodes, nccl; bandwidths in GB/s, as nccl-tests have them",
        "size           time  algbw  busbw",
        "1.0 MiB    20.00 ms   1.00   1.50",
        "256.0 MiB  20.00 ms  13.40  21.50",
        "No node makes it slow.",
    ]


def test_only_the_node_with_slow_exchanges_is_named() -> None:
    evaluated = evaluate_collective(NODES, job(slow="n4"))
    assert [name for name, result in evaluated["verdicts"].items() if not result["ok"]] == ["n4"]
    assert evaluated["findings"] == ["n4: it sends 20 and receives 20 Gb/s where 180 are usual"]


PAIR_ROUNDS = 8  # as many as rdm_trainer/tools/all_reduce.py carries out


@pytest.mark.parametrize("seed", range(3))
def test_among_a_thousand_nodes_eight_exchanges_distinguish_slow_nodes_from_a_slow_link(seed: int) -> None:
    nodes = {f"n{number}": f"10.0.{number // 250}.{number % 250 + 1}" for number in range(1000)}
    chance = random.Random(seed)
    slow = set(chance.sample(list(nodes), 20))
    pairs = [pair for met in chosen_rounds(list(nodes), PAIR_ROUNDS, 0) for pair in met]
    link = chance.choice([pair for pair in pairs if not slow & set(pair)])
    links = [
        [
            nodes[one],
            nodes[other],
            chance.gauss(180, 9) * (0.3 if (one, other) == link or slow & {one, other} else 1),
        ]
        for one, other in pairs
    ]
    evaluated = evaluate_collective(
        nodes, job(nodes=list(nodes), links_gbit=links, rates_gbit={}), slow_share=0.5
    )
    assert {name for name, result in evaluated["verdicts"].items() if not result["ok"]} == slow | set(link)
    messages = [finding.partition(":")[0] for finding in evaluated["findings"]]
    assert sorted(messages) == sorted([*slow, " <-> ".join(link)])


def test_far_below_the_links_rate_is_a_warning() -> None:
    evaluated = evaluate_collective(NODES, job(rates_gbit=dict.fromkeys(NODES, 400.0)))
    assert evaluated["ok"]
    assert evaluated["warnings"] == ["the best bus bandwidth is 21.5 GB/s, 43% of a link's 400 Gb/s"]


def test_of_a_job_that_failed_the_node_that_failed_first_fails() -> None:
    reason = "Rank 1 on n2 failed: NCCL error."
    ended = job(sizes=[], links_gbit=[])
    ended.update(state="failed", reason=reason, failures=[{"node": "n2", "rank": 1, "reason": reason}])
    evaluated = evaluate_collective(NODES, ended)
    assert evaluated["findings"] == ["the all-reduce did not end well: Rank 1 on n2 failed: NCCL error"]
    assert evaluated["verdicts"]["n2"] == {"ok": False, "reason": reason}
    assert evaluated["verdicts"]["n1"]["ok"]


def test_of_a_job_of_which_nothing_is_known_the_master_fails() -> None:
    evaluated = evaluate_collective(NODES, {"state": "not known", "reason": "no answer"})
    assert not evaluated["ok"]
    assert evaluated["verdicts"]["n1"]["reason"] == "the all-reduce did not end well: no answer"
    assert evaluated["busbw"] is None
    assert text(collective_report(evaluated)) == "failed: the all-reduce did not end well: no answer"
