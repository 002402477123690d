# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults that are planted in a job of two nodes with real agents: each is named, with node and rank.

What the processes run is a small program that computes, waits for the other one, and tells its pace as ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdm_job.directory import JobDirectory
from tests.distributed.test_job_agents import Nodes, running
from tests.waiting import wait_until

PROGRAM = """
import os, pathlib, sys, time

from rdm_trainer.pace import Pace

rank, place = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
(place / f"{os.environ['RDM_JOB_ID'].partition('@')[0]}.{rank}.{os.environ['RDM_ATTEMPT']}").touch()
pace = Pace()
step = 0
own_s, steps, nan_at = 0.0, 0, None
while not (place / f"end.{rank}").exists():
    step += 1
    pace.step(step)
    began = time.perf_counter()
    time.sleep(0.6 if (place / f"slow.{rank}").exists() else 0.1)
    while (place / f"hang.{rank}").exists():
        time.sleep(0.1)
    own_s, steps = own_s + time.perf_counter() - began, steps + 1
    if (place / f"nan.{rank}").exists():
        nan_at = nan_at or step
    with pace.waiting():
        (place / f"step.{rank}").write_text(str(step))
        while True:
            there = place / f"step.{1 - rank}"
            if there.exists() and int(there.read_text() or 0) >= step or (place / f"end.{rank}").exists():
                break
            time.sleep(0.01)
    if pace.is_due:
        pace.write(group="stage 0", own_s=own_s / steps, nan_at=nan_at)
        own_s, steps = 0.0, 0
    if rank == 1:
        print(f" iteration {step:8d}/  100000 | elapsed time per iteration (ms): 150.0 | lm loss: 5.0E+00 |",
              flush=True)
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    with running(made) as nodes:
        yield nodes


def test_who_is_slow_and_whose_loss_is_no_number_is_named_and_a_healthy_job_is_healthy(nodes: Nodes) -> None:
    job = "watched"
    nodes.run(job)
    master = JobDirectory(nodes.folder / "n1" / job, "n1")

    def judged(word: str, culprit: dict[str, Any] | None = None) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            return master.read_state().verdict

        def accept(found: dict[str, Any]) -> bool:
            return found.get("verdict") == word and (culprit is None or culprit in found["culprits"])

        return wait_until(f"{job} is {word}", look, accept)

    judged("healthy")
    (nodes.folder / "slow.1").touch()
    slow = judged("suspect", {"kind": "slow", "node": "n2", "rank": 1})
    assert len(slow["culprits"]) == 1, slow
    (nodes.folder / "slow.1").unlink()
    judged("healthy")
    (nodes.folder / "nan.0").touch()
    judged("suspect", {"kind": "nan", "node": "n1", "rank": 0})
    nodes.end(0)
    nodes.end(1)
    assert nodes.ended(job)["verdict"]["verdict"] == "finished"
