# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job's users can rely on in every execution environment: the same tests for each of them.

A file that tests an environment subclasses `Promises`, and has the fixtures ``place``, ``launcher`` (a
parameter), ``config`` and ``trained``. Agents and Slurm on one machine have a list of their own:
trainer/tests/distributed/test_places.py.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.e2e.places import (
    ENDLESS,
    LOSSES,
    NODES,
    STEPS,
    Place,
    end,
    gone,
    jobs,
    nothing_left,
    pid,
    processes,
    restarted,
    start_waiting,
    trains,
    waiting,
    waits,
)
from tests.e2e.product import Background, wait_until
from tests.printed_hints import follow


class Trained(NamedTuple):
    """A job that has trained its steps.

    Attributes:
        job: its name.
        layout: overrides that select another layout.
    """

    job: str
    layout: list[str]


def another_process(place: Place, job: str, before: str) -> None:
    """Wait until a job's process on the second node is another one."""
    wait_until(lambda: pid(place, job, "n2") not in ("", before), f"{job} has another process on n2")


class Promises:
    """Tests for one execution environment.

    Attributes:
        restarts: how often the job whose rank is killed may restart.
    """

    restarts = 1

    def test_a_job_goes_on_in_another_layout_with_the_same_losses(
        self, place: Place, trained: Trained
    ) -> None:
        more = [f"optimisation.train_iterations={STEPS + 2}", *trained.layout]
        resumed = place.json("train", "--resume", trained.job, *more)["job"]
        assert resumed["state"] == "finished"
        expected = {step: loss for step, loss in LOSSES.items() if step <= STEPS + 2}
        assert dict(resumed["losses"]) == pytest.approx(expected, abs=1e-4)

    def test_nobody_has_to_watch_and_two_jobs_do_not_meet(
        self, place: Place, launcher: str, config: str
    ) -> None:
        """Ctrl-C and a killed control process leave jobs alone; one job is stopped, the other continues."""
        one, two = f"e2e-one-{launcher}", f"e2e-two-{launcher}"
        watchers: dict[str, Background] = {}
        # The second job needs a port, but no training.
        for job, what, begins in (
            (two, (waiting(place, "connected"),), waits),
            (one, (ENDLESS, "parallel.pipeline=2"), trains),
        ):
            watchers[job] = place.start("train", config, *what, "--name", job, "--launcher", launcher)
            begins(place, job)
            # While it watches a job, a control process does not hold the cluster's lock.
            wait_until(lambda: not (place.inventory / ".rdm" / "lock").read_text(), "the lock is given back")
        watchers[one].interrupt()
        output = watchers[one].end(expect=130)
        assert f"{one} goes on" in output
        assert f"rdm-provision stop -i inventory/{place.inventory.name} {one}" in output
        watchers[two].kill()

        found = jobs(place)
        assert (found[one]["state"], found[two]["state"]) == ("running", "running")
        # The output of a rank is in the log a moment later.
        wait_until(lambda: "iteration" in place.rdm("logs", one).stdout, "the log tells of steps")
        theirs = [pid(place, two, node) for node in NODES]
        assert place.json("stop", one)["changed"]
        stopped = jobs(place, one)[one]
        assert stopped["state"] == "stopped"
        # It has saved its last step.
        assert stopped["checkpoint"] == stopped["iteration"]
        assert gone(place, one)
        message = place.spares(two)
        for node, process in zip(NODES, theirs, strict=True):
            assert process in processes(place, node, two)
        assert jobs(place, two)[two]["state"] == "running"
        # It has nothing to save.
        assert follow(message, "stop", place.json, "--now", JOB=two)["changed"]
        assert not place.json("stop", two)["changed"]
        assert gone(place, two)

    def test_a_rank_that_is_killed_ends_the_job_everywhere_unless_it_may_restart(
        self, place: Place, launcher: str, config: str
    ) -> None:
        job = f"e2e-killed-{launcher}"
        start_waiting(place, config, job, "--launcher", launcher, "--max-restarts", str(self.restarts))
        for times in range(self.restarts):
            before = pid(place, job, "n2")
            place.inside("n2", "kill", "-KILL", before)
            restarted(place, job, times + 1)
            another_process(place, job, before)
            waits(place, job)
        place.inside("n2", "kill", "-KILL", pid(place, job, "n2"))
        nothing_left(place, job)
        ended = end(place, job)
        assert ended["state"] == "failed"
        assert [(failure["node"], failure["rank"]) for failure in ended["failures"]] == [
            ("n2", 1) for _ in range(self.restarts + 1)
        ]

    def test_a_node_that_goes_down_ends_the_job_on_the_others(
        self, place: Place, launcher: str, config: str
    ) -> None:
        job = f"e2e-down-{launcher}"
        start_waiting(place, config, job, "--launcher", launcher)
        place.lab("stop", "n2")
        nothing_left(place, job, ["n1"])
        result = place.json("jobs", job, "--watch", expect=1)
        # The master's agent reports it: no other node is queried.
        assert (list(result["nodes"]), result["unreachable"]) == (["n1"], [])
        (ended,) = result["jobs"]
        assert ended["state"] == "failed"
        assert [failure["node"] for failure in ended["failures"]] == ["n2"]
