# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a running job from its agents' reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rdm_job import health as health_module
from rdm_job.health import Health, of_state
from rdm_job.protocol import Failure
from tests.unit.job.two_nodes import REQUEST, STATE, config


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(health_module, "time", made)
    return made


def rank(number: int, **more: Any) -> dict[str, Any]:
    base = {"rank": number, "group": "stage 0", "iteration": 40, "waits": False, "compute_s": 0.5}
    return {**base, "least_s": 0.5, "waited_s": 0.1, "before_s": 0.5, "nan_at": None, "retries": 0, **more}


def run(iteration: int = 40) -> dict[str, Any]:
    loss = {"name": "lm loss", "curve": [], "last": 8.0, "lowest": 8.0, "lowest_at": 40, "not_finite": 0}
    times = {"recent": [500.0] * 10, "median": 500.0}
    reported = {"lines": 40, "first_iteration": 1, "last_iteration": iteration, "train_iterations": 5000}
    return {**reported, "loss": loss, "step_ms": times, "skipped": 0, "nan": 0, "milestones": {}}


def reports(*, iteration: int = 40, **ranks: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the reports of two healthy nodes with two ranks each, with changes for some ranks (``r3``)."""

    def watch(first: int) -> dict[str, Any]:
        reported = [rank(n, iteration=iteration, **ranks.get(f"r{n}", {})) for n in (first, first + 1)]
        return {
            "versions": {"torch": "2.13.0"},
            "findings": [],
            "run": run(iteration) if first else None,
            "since_s": 0.3,
            "phase": "" if first else "training",
            "reports_phases": not first,
            "ranks": reported,
            "signs": [],
            "held_back": "",
            "quota": None,
            "gpu_processes": None,
            "arguments": {"WORLD_SIZE": "4"},
            "vocabulary": None,
        }

    return {"n1": {"watch": watch(0)}, "n2": {"watch": watch(2)}}


def test_a_healthy_job(tmp_path: Path, clock: Clock) -> None:
    health = Health(REQUEST, config(tmp_path))
    found = health.verdict(STATE, {})
    assert (found["verdict"], found["since"]) == ("starting", 1000.0)
    for step in range(600):
        clock.now += 1
        found = health.verdict(STATE, reports(iteration=40 + step))
    assert found["verdict"] == "healthy"
    assert found["reason"] == "Iteration 639 of 5000, 0.50 s a step, lm loss 8.0000."
    assert found["since"] == 1001.0
    # A long checkpoint and a restart are healthy.
    pauses = reports()
    pauses["n1"]["watch"]["phase"] = "saving"
    disk = {"kind": "disk", "text": "The disk of n2 is full.", "node": "n2"}
    pauses["n2"]["watch"]["signs"] = [disk]
    for watch in pauses.values():
        watch["watch"]["since_s"] = 500.0
    clock.now += 500
    assert health.verdict(STATE, pauses)["verdict"] == "healthy"
    pauses["n1"]["watch"]["phase"] = "training"
    assert disk["text"] in health.verdict(STATE, pauses)["evidence"]
    health.begin()
    assert health.verdict(replace(STATE, state="restarting"), {})["verdict"] == "starting"


SLOW: dict[str, Any] = {
    "r3": {"compute_s": 1.5, "least_s": 1.4},
    **{f"r{n}": {"waited_s": 1.1} for n in range(3)},
}


def test_a_slow_rank_is_named(tmp_path: Path, clock: Clock) -> None:
    found = Health(REQUEST, config(tmp_path)).verdict(STATE, reports(**SLOW))
    assert (found["verdict"], found["exit_code"]) == ("suspect", 4)
    assert found["culprits"] == [{"kind": "slow", "node": "n2", "rank": 3}]


def test_other_work_on_a_node_is_noted_and_makes_no_job_suspect(tmp_path: Path, clock: Clock) -> None:
    health = Health(REQUEST, config(tmp_path))
    ranks: dict[str, Any] = {**SLOW, "r3": {"compute_s": 1.5, "least_s": 0.5, "starved_s": 0.9}}
    busy = reports(**ranks)
    assert len(health.verdict(STATE, busy)["evidence"]) == 1
    clock.now += 50
    assert len(health.verdict(STATE, reports(iteration=41))["evidence"]) == 1
    clock.now += 1
    health.verdict(STATE, busy)
    for step in range(60):
        clock.now += 1
        found = health.verdict(STATE, reports(iteration=42 + step, **ranks))
    assert (found["verdict"], found["culprits"]) == ("healthy", [])
    assert found["evidence"][1].startswith("Others use the processors of n2: rank 3 takes")
    busy["n2"]["watch"]["held_back"] = "its quota is 0.5"
    found = health.verdict(STATE, busy)
    assert (found["verdict"], found["culprits"]) == (
        "suspect",
        [{"kind": "processors", "node": "n2", "rank": 3}],
    )
    assert found["reason"] == (
        "n2 has too few processors for its ranks, its quota is 0.5: rank 3 takes 1.50 s of its own in a "
        "step, 900 ms of it waiting for a processor; its peers take 500 ms."
    )
    # With equal quotas, it is chance which node is throttled first.
    busy["n2"]["watch"]["quota"] = busy["n1"]["watch"]["quota"] = 0.5
    for step in range(61):
        clock.now += 1
        for node in busy.values():
            for one in node["watch"]["ranks"]:
                one["iteration"] = 200 + step
        found = health.verdict(STATE, busy)
        assert (found["verdict"], found["culprits"]) == ("healthy", [])
    assert "its quota is 0.5 and its peers' no larger: rank 3 takes" in found["evidence"][1]
    busy["n1"]["watch"]["quota"] = 1.0
    assert health.verdict(STATE, busy)["culprits"] == [{"kind": "processors", "node": "n2", "rank": 3}]


def test_unreadable_gpus_are_noted_once_and_make_no_job_suspect(tmp_path: Path, clock: Clock) -> None:
    health, why = Health(REQUEST, config(tmp_path)), "nvidia-ml-py is not installed: nothing is known."
    reported = reports()
    reported["n2"]["watch"]["unwatched"] = why
    for nodes in ("n2", "all nodes"):
        clock.now += 1
        found = health.verdict(STATE, reported)
        assert (found["verdict"], found["culprits"]) == ("healthy", [])
        assert found["evidence"][1:] == [f"On {nodes}: {why}"]
        reported["n1"]["watch"]["unwatched"] = why


def test_missing_rank_is_named(tmp_path: Path, clock: Clock) -> None:
    health = Health(REQUEST, config(tmp_path))
    waits: dict[str, Any] = {f"r{n}": {"waits": n != 2} for n in range(4)}
    reported = reports(**waits)
    health.verdict(STATE, reported)
    clock.now += 25
    for one in reported.values():
        one["watch"]["since_s"] = 25.0
    found = health.verdict(STATE, reported)
    assert found["verdict"] == "stalled"
    assert found["reason"] == (
        "No step for 25 s after iteration 40 (usual are 0.5 s): the others wait for rank 2 on n2."
    )


def test_versions_errors_and_requested_values_are_compared(tmp_path: Path, clock: Clock) -> None:
    program = ["pretrain_gpt.py", "--num-layers", "24", "--lr=1e-4", "--hidden-size", "1024"]
    health = Health(REQUEST, config(tmp_path, launcher={"program": program}))
    reported = reports()
    reported["n2"]["watch"]["versions"] = {"torch": "2.11.0"}
    reported["n1"]["watch"]["findings"] = [
        {
            "name": "disk-full",
            "kind": "error",
            "cause": "a disk or a quota is full",
            "line": "OSError: [Errno 28] No space left on device",
            "count": 2,
            "ranks": [1],
            "node": "",
        }
    ]
    reported["n1"]["watch"]["arguments"] = {"num_layers": "12", "lr": "0.0001", "WORLD_SIZE": "2"}
    reported["n2"]["watch"]["arguments"] = {"lr": "1.0e-4", "WORLD_SIZE": "4"}
    clock.now += 1
    found = health.verdict(STATE, reported)
    assert found["verdict"] == "suspect"
    assert found["evidence"] == [
        "A disk or a quota is full, 2 times (n1, rank 1: OSError: [Errno 28] No space left on device).",
        "num_layers is 12 on n1, and 24 was requested.",
        "WORLD_SIZE is 2 on n1, and 4 was requested.",
        "n2 has torch 2.11.0, others have 2.13.0.",
    ]
    assert {"kind": "version", "node": "n2", "rank": None} in found["culprits"]
    assert {"kind": "configuration", "node": "n1", "rank": None} in found["culprits"]
    for one in reported.values():
        one["watch"]["arguments"] = {"WORLD_SIZE": "2"}
    found = health.verdict(STATE, reported)
    assert "WORLD_SIZE is 2 on n1, n2, and 4 was requested." in found["evidence"]
    assert "configuration" not in [one["kind"] for one in found["culprits"]]


def test_the_verdict_on_a_job_that_has_ended() -> None:
    failure = Failure("n2", 3, "Rank 3 on n2 failed: it was killed.")
    ended = replace(STATE, state="failed", reason=failure.reason, failures=[failure], ended=9.0)
    found = of_state(ended)
    assert (found["verdict"], found["since"], found["reason"]) == ("failed", 9.0, failure.reason)
    assert found["culprits"] == [{"kind": "failure", "node": "n2", "rank": 3}]
    done = of_state(replace(STATE, state="finished", progress={"iteration": 50}))
    assert (done["verdict"], done["reason"]) == ("finished", "It reached iteration 50.")
    short = {"iteration": 30, "train_iterations": 50, "phase": "done"}
    # "done" means that it ended there on request; otherwise the reason is unknown.
    for phase, word in (("done", "finished"), ("training", "suspect")):
        reported = of_state(replace(STATE, state="finished", progress={**short, "phase": phase}))
        assert reported["verdict"] == word


def test_rank_with_a_nan_loss_is_still_named_after_its_end(tmp_path: Path, clock: Clock) -> None:
    health = Health(REQUEST, config(tmp_path))
    broken = reports(r3={"nan_at": 38})
    assert health.verdict(STATE, broken)["culprits"] == [{"kind": "nan", "node": "n2", "rank": 3}]
    # The ranks that still report are no culprits, and ended processes report nothing.
    for gone in ("n2", "n1"):
        broken[gone]["watch"]["ranks"] = []
        broken["n2"]["watch"]["run"] = {**run(5000), "nan": 3}
        found = health.verdict(replace(STATE, state="finished"), broken)
        assert (found["verdict"], found["exit_code"]) == ("suspect", 4)
        assert found["culprits"] == [{"kind": "nan", "node": "n2", "rank": 3}]
        assert "The loss was not a number 3 times." in found["evidence"]
    health.begin()
    assert health.verdict(replace(STATE, state="finished"), reports())["culprits"] == []
