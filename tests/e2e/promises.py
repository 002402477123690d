# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job's users can rely on in every execution environment: the same tests for each of them.

A file that tests an environment subclasses `Promises`, and has the fixtures ``environment``, ``launcher`` (a
parameter), ``config`` and ``trained``. Agents and Slurm on one machine have a list of their own:
trainer/tests/distributed/test_environments.py.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.e2e.environments import (
    ENDLESS,
    LOSSES,
    NODES,
    STEPS,
    Environment,
    end,
    gone,
    jobs,
    pid,
    processes,
    start_waiting,
    wait_for_restart,
    wait_for_step,
    wait_until_gone,
    wait_until_waiting,
    waiting,
)
from tests.e2e.product import Background
from tests.printed_hints import follow
from trainer.tests.waiting import wait_until


class Trained(NamedTuple):
    """A job that has trained its steps.

    Attributes:
        job: its name.
        layout: overrides that select another layout.
    """

    job: str
    layout: list[str]


def another_process(environment: Environment, job: str, before: str) -> None:
    """Wait until a job's process on the second node is another one."""
    another = f"{job} has another process on n2"
    wait_until(another, lambda: pid(environment, job, "n2"), lambda now: now not in ("", before))


class Promises:
    """Tests for one execution environment.

    Attributes:
        restarts: how often the job whose rank is killed may restart.
    """

    restarts = 1

    def test_job_resumes_in_another_layout_with_the_same_losses(
        self, environment: Environment, trained: Trained
    ) -> None:
        more = [f"optimisation.train_iterations={STEPS + 2}", *trained.layout]
        resumed = environment.json("train", "--resume", trained.job, *more)["job"]
        assert resumed["state"] == "finished"
        expected = {step: loss for step, loss in LOSSES.items() if step <= STEPS + 2}
        assert dict(resumed["losses"]) == pytest.approx(expected, abs=1e-4)

    def test_unwatched_jobs_run_side_by_side(
        self, environment: Environment, launcher: str, config: str
    ) -> None:
        """Ctrl-C and a killed control process leave jobs alone; one job is stopped, the other continues."""
        one, two = f"e2e-one-{launcher}", f"e2e-two-{launcher}"
        watchers: dict[str, Background] = {}
        lock = environment.inventory / ".rdm" / "lock"
        # The second job needs a port, but no training.
        for job, what, begins in (
            (two, (waiting(environment, "connected"),), wait_until_waiting),
            (one, (ENDLESS, "parallel.pipeline=2"), wait_for_step),
        ):
            watchers[job] = environment.start("train", config, *what, "--name", job, "--launcher", launcher)
            begins(environment, job)
            # While it watches a job, a control process does not hold the cluster's lock.
            wait_until("the lock is given back", lambda: not lock.read_text())
        watchers[one].interrupt()
        output = watchers[one].end(expect=130)
        assert f"{one} goes on" in output
        assert f"rdm-provision stop -i inventory/{environment.inventory.name} {one}" in output
        watchers[two].kill()

        found = jobs(environment)
        assert (found[one]["state"], found[two]["state"]) == ("running", "running")
        # The output of a rank is in the log a moment later.
        wait_until("the log tells of steps", lambda: "iteration" in environment.rdm("logs", one).stdout)
        theirs = [pid(environment, two, node) for node in NODES]
        assert environment.json("stop", one)["changed"]
        stopped = jobs(environment, one)[one]
        assert stopped["state"] == "stopped"
        # It has saved its last step.
        assert stopped["checkpoint"] == stopped["iteration"]
        assert gone(environment, one)
        message = environment.protects(two)
        for node, process in zip(NODES, theirs, strict=True):
            assert process in processes(environment, node, two)
        assert jobs(environment, two)[two]["state"] == "running"
        # It has nothing to save.
        assert follow(message, "stop", environment.json, "--now", JOB=two)["changed"]
        assert not environment.json("stop", two)["changed"]
        assert gone(environment, two)

    def test_killed_rank_ends_the_job_on_all_nodes_unless_it_may_restart(
        self, environment: Environment, launcher: str, config: str
    ) -> None:
        job = f"e2e-killed-{launcher}"
        start_waiting(environment, config, job, "--launcher", launcher, "--max-restarts", str(self.restarts))
        for times in range(self.restarts):
            before = pid(environment, job, "n2")
            environment.inside("n2", "kill", "-KILL", before)
            wait_for_restart(environment, job, times + 1)
            another_process(environment, job, before)
            wait_until_waiting(environment, job)
        environment.inside("n2", "kill", "-KILL", pid(environment, job, "n2"))
        wait_until_gone(environment, job)
        ended = end(environment, job)
        assert ended["state"] == "failed"
        assert [(failure["node"], failure["rank"]) for failure in ended["failures"]] == [
            ("n2", 1) for _ in range(self.restarts + 1)
        ]

    def test_lost_node_ends_the_job_on_the_others(
        self, environment: Environment, launcher: str, config: str
    ) -> None:
        job = f"e2e-down-{launcher}"
        start_waiting(environment, config, job, "--launcher", launcher)
        environment.lab("stop", "n2")
        wait_until_gone(environment, job, ["n1"])
        result = environment.json("jobs", job, "--watch", expect=1)
        # The master's agent reports it: no other node is queried.
        assert (list(result["nodes"]), result["unreachable"]) == (["n1"], [])
        (ended,) = result["jobs"]
        assert ended["state"] == "failed"
        assert [failure["node"] for failure in ended["failures"]] == ["n2"]
