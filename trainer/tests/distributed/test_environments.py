# SPDX-License-Identifier: GPL-3.0-or-later
"""What every execution environment guarantees for a job: the same list for each of them.

The containers of a lab, and bare hosts behind a jump host, are in tests/e2e of the repository.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.environments import (
    Agents,
    Environment,
    InSlurm,
    state,
    tiny,
    wait_for_iteration,
    wait_for_state,
)
from tests.distributed.nodes import Nodes, running
from tests.tiny import LOSSES
from tests.waiting import wait_until


# test_job_agents.py tests the agents' guarantees, and tests/e2e of the repository does so in containers.
# With an image, Slurm does everything that it does without one.
@pytest.fixture(
    params=[
        pytest.param("agents", marks=pytest.mark.long),
        pytest.param("slurm", marks=pytest.mark.long),
        "slurm in charliecloud",
    ]
)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    if request.param == "agents":
        with running(Nodes(tmp_path)) as nodes:
            yield Agents(nodes)
    elif request.param == "slurm":
        yield InSlurm(request.getfixturevalue("slurm"))
    else:
        yield InSlurm(request.getfixturevalue("slurm"), request.getfixturevalue("image").options)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A job's name that is unique in the shared Slurm cluster."""
    return str(request.node.callspec.id).replace(" ", "-")


def wait_for_ranks(environment: Environment, job: str, times: int = 1) -> None:
    """Wait until both processes have begun, ``times`` times, and the agents report it."""
    begun = [["rank", str(n), "of", "2"] for n in (0, 1) for _ in range(times)]
    wait_until(
        f"the processes of {job} have begun",
        lambda: sorted(line for line in environment.logs(job) if line.startswith("rank")),
        lambda lines: [line.split()[:4] for line in lines] == begun,
    )
    wait_for_state(environment, job, "running")


def let_end(environment: Environment, job: str) -> None:
    for directory in environment.directories(job):
        (directory / "end").touch()
    ended = wait_for_state(environment, job, "finished", "failed")
    assert (ended["state"], set(ended["nodes"].values())) == ("finished", {"done"}), ended


def test_job_outlives_its_observer_restarts_stops_and_resumes_next_to_another_job(
    environment: Environment, name: str
) -> None:
    first, second = f"first-{name}", f"second-{name}"
    environment.submit(first, "launcher.max_restarts=1")
    environment.submit(second)
    for job in (first, second):
        wait_for_ranks(environment, job)
    watcher = environment.watcher(first)
    watcher.kill()
    watcher.wait()
    assert {one["job"]: one["state"] for one in environment.run_verb("list")["jobs"]}[first] == "running"

    (record,) = (path for where in environment.directories(first) for path in where.glob("ranks/*/1.json"))
    os.kill(int(json.loads(record.read_text())["pid"]), signal.SIGKILL)
    ended = wait_until(
        "it begins again",
        lambda: state(environment, first),
        lambda one: (one["state"], one["restarts"]) == ("running", 1),
    )
    (failure,) = ended["failures"]
    assert (failure["node"], failure["rank"]) == (record.parent.name, 1)
    assert "killed" in failure["reason"]

    wait_for_ranks(environment, first, times=2)
    ended = environment.run_verb("stop", first)["job"]
    assert (ended["state"], ended["reason"]) == ("stopped", "It saved and ended, as requested.")
    environment.submit(first, config="", resume=True)
    wait_for_state(environment, first, "running")
    assert wait_for_state(environment, second, "running", "failed")["state"] == "running"
    for job in (first, second):
        let_end(environment, job)


@pytest.mark.long
def test_dead_node_is_named_and_costs_a_restart(environment: Environment, name: str) -> None:
    job = f"loses-a-node-{name}"
    environment.submit(job, "launcher.max_restarts=1")
    wait_for_ranks(environment, job)
    node = environment.node_dies(job)
    environment.node_returns(job, node)
    ended = wait_until(
        "it begins again",
        lambda: state(environment, job),
        lambda one: (one["state"], one["restarts"]) == ("running", 1),
    )
    assert node in {failure["node"] for failure in ended["failures"]}, ended["failures"]
    let_end(environment, job)


@pytest.mark.long
def test_gpt_stops_with_a_checkpoint_and_resumes_in_another_layout_with_the_same_losses(
    environment: Environment, name: str
) -> None:
    job, pause = f"tiny-{name}", environment.folder / "pause"
    pause.write_text("3")
    environment.submit(job, config=tiny(environment.folder, environment.kind))
    wait_for_iteration(environment, job, 3)
    stopped = environment.run_verb("stop", job)["job"]
    assert (stopped["state"], stopped["reason"]) == ("stopped", "It saved and ended, as requested.")
    at = stopped["progress"]["iteration"]
    assert (3 <= at < 12, stopped["progress"]["checkpoint"]) == (True, at)
    pause.unlink()
    environment.submit(job, "parallel.pipeline=2", config="", resume=True)
    finished = wait_for_state(environment, job, "finished", "failed")
    assert (finished["state"], finished["progress"]["iteration"]) == ("finished", 12), finished
    losses = {**dict(stopped["progress"]["losses"]), **dict(finished["progress"]["losses"])}
    assert losses == pytest.approx(LOSSES, abs=1e-4)
