# SPDX-License-Identifier: GPL-3.0-or-later
"""What nodes report of a job, and how tests see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from rich.console import Console

from rdm_provision.results.events import NodeRecap, RunResult
from rdm_provision.results.job_state import JobState

NOW = 2_000_000.0
# As docs/launchers.md describes it.
REPORTED: dict[str, Any] = {
    "version": 1,
    "job": "demo-1",
    "state": "running",
    "reason": "",
    "launcher": "no_ssh",
    "master": "n1",
    "nodes": {"n1": "running", "n2": "running"},
    "failures": [],
    "restarts": 0,
    "started": NOW - 60,
    "ended": None,
    "directory": "/jobs/demo-1",
    "gpu": {"n1": ["[0] NVIDIA H200 | 98 % |"]},
    "progress": {
        "iteration": 30,
        "train_iterations": 50,
        "loss": 8.91,
        "lr": 1.6e-06,
        "tokens_per_second": 46800.0,
        "losses": [[10, 10.9], [20, 10.1], [30, 8.91]],
        "checkpoint": 20,
        "phase": "training",
    },
}
FAILED: dict[str, Any] = {
    **REPORTED,
    "state": "failed",
    "reason": "rank 5 on n2 was killed",
    "nodes": {"n1": "done", "n2": "failed"},
    "failures": [{"node": "n2", "rank": 5, "reason": "it was killed by SIGKILL", "lines": ["last words"]}],
    "ended": NOW - 10,
}


def state(**changes: Any) -> JobState:
    return JobState.of({**REPORTED, **changes}, "/var/lib/rdm/rdm", NOW)


def answered(answers: dict[str, Any], verb: str = "jobs", **more: Any) -> RunResult:
    """Return the result of a run in which each node reported this, and by default went well."""
    returned = {"rdm.provision.job": {node: [answer] for node, answer in answers.items()}}
    return RunResult(
        **{"verb": verb, "nodes": dict.fromkeys(answers, NodeRecap(ok=1)), "returned": returned, **more}
    )


def invoke(verb: Any, inventory: Path, *words: str, **how: Any) -> Result:
    return CliRunner().invoke(verb, ["-i", str(inventory), *words], standalone_mode=False, **how)


def screen(*, terminal: bool = False) -> Console:
    return Console(
        width=120, record=True, force_terminal=terminal, highlight=False, markup=False, color_system=None
    )


SLOW: dict[str, Any] = {
    "verdict": "suspect",
    "exit_code": 4,
    "reason": "Rank 5 on n2 is slow.",
    "evidence": ["Rank 5 on n2 is slow.", "GPU 1 of n2 is throttled by heat."],
    "culprits": [{"kind": "slow", "node": "n2", "rank": 5}],
    "since": NOW - 5,
}
WELL = {
    **SLOW,
    "verdict": "healthy",
    "exit_code": 0,
    "reason": "Iteration 30.",
    "evidence": ["Iteration 30."],
}
